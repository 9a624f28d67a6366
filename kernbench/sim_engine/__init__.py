"""Commands: their order, their duration, their effect on bytes, and the record of them."""
