"""The networks of VoxCPM and the flow-matching solver: plain torch, no vLLM, stateless modules.

Parameter names equal the reference's, so that checkpoints load without a name map.
"""
