"""What `--quantize` costs in quality, measured against f16; the numbers of docs/quantization.md."""
