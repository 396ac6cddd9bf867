"""From a request to an answer: prompt, engine, events."""
