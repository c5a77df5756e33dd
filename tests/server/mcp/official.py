"""A server of tools by the official package: over stdio, or over HTTP when it is given a port.

With a word behind the port it has the older transport.
"""

import sys

from mcp.server.mcpserver import MCPServer
from mcp_types import ToolAnnotations

server = MCPServer("weather")


@server.tool(annotations=ToolAnnotations(readOnlyHint=True))
def weather(city: str) -> str:
    """The weather in a city."""
    if city == "Atlantis":
        raise ValueError("no such city")
    return f"{city}: 12 degrees"


@server.tool()
def now() -> str:
    """The time."""
    return "noon"


if __name__ == "__main__":
    if len(sys.argv) > 2:
        server.run("sse", port=int(sys.argv[1]))
    elif len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run()
