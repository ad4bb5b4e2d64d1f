"""How do values cross the connection between daemon and client?

    messages    values to messages of the service, and back
    errors      errors to status codes and details, and back
    symbols     the symbol list and checkpoints as messages
    positions   durable subscriptions: the position file of a holder, and whose turn it is

Decoding takes input from the other side. Malformed input raises InvalidInput or Corrupt, and no other error.
"""
