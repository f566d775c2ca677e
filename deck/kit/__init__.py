"""What families are built from: filters over canonical events, and the syntaxes in which models write calls as text."""
