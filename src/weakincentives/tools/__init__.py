"""Hosted tools, one public module per kind, and what all kinds share."""

from weakincentives.tools.hosted import DomainFilter, FailureCode, HostedToolFailure, HostedToolSection

__all__ = ["DomainFilter", "FailureCode", "HostedToolFailure", "HostedToolSection"]
