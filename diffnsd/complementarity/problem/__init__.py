"""The step problem: its laws as one map, its operators and its elimination."""
