"""What `everstep demo` shows: a small GPT that loses devices and ends on the same bits."""
