"""The controller: hosts the pure core behind real sockets, keeps its journal, tells people how the job is."""
