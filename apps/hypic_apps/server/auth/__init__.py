"""Who may ask: API keys, tenants, and what may be reached without keys."""
