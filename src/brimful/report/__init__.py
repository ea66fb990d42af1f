"""What was predicted beside what was measured: live progress, TensorBoard files, tables, figures,
`report.html`.
"""
