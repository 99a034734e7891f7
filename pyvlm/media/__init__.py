"""From bytes to pixel patches: policy, header, decode, transform."""
