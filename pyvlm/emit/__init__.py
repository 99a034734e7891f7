"""MLIR of a model: `program.emit` writes it, `layout` fixes the shapes that others rely on.

decoder.py and vision.py say what a model computes, in terms of the operations of ops.py; kernels.py
and codegen.py are the two ways to lower these. builder.py, dispatch.py and linalg.py write text.
"""
