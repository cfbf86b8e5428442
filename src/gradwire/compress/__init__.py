"""The compress room: gradients in, payloads out, nothing lost."""
