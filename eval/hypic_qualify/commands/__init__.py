"""One module a command: parse, call one function of ``hypic_qualify``, print."""
