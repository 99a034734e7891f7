"""Training of the tiny bundled vision-language model: data, model, training, export, evaluation."""
