"""The emulated hardware: shapes, units, the Mininet network and fabricd."""
