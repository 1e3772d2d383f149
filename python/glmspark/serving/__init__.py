"""What serving GLM-5.3-Flash needs to know: sizes, memory, command lines, limits.

Everything here is a pure function of the model's configuration, the kit's shape and
a profile. Nothing starts a process, opens a socket or reads a node.
"""
