"""How do values cross the connection between daemon and client?

    messages    values to messages of the service, and back
    errors      errors to status codes and details, and back
    symbols     the symbol list and checkpoints as messages
    positions   durable subscriptions: the file that says how far a holder is, and whose turn it is

Decoding takes input from the other side: what cannot be read raises InvalidInput or Corrupt, and nothing else.
"""
