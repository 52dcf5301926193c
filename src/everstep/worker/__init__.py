"""The user's process: its main thread trains and says where it is, a control thread obeys the agent.

It knows `core` and `wire`, and the layout of the board; of the agent and the controller nothing more. No torch.
"""
