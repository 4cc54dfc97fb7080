"""The controller of the fabric: load-balancing policies (pure), and the Ryu application that applies them."""
