"""Why a masked generator has no exported graph."""

NOT_EXPORTABLE = "generation by repeated masking is a loop, not a graph"
