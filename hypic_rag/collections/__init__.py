"""Collections of documents under HYPIC_HOME/server, as the server and the commands both see them."""
