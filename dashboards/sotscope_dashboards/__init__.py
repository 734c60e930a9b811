"""The live page of sotscope: see the states while a model writes, and switch how it decodes. Imports no torch."""
