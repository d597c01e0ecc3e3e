"""Agents: a Coordinator, an Analyzer, a brain that proposes and a Verifier, which steer what is tried."""
