"""The numbers of libibverbs that verbs.py speaks in, and a work completion."""

from __future__ import annotations

from enum import IntEnum, IntFlag
from typing import NamedTuple

from topologies.fabricd._core import lib

_FIRST_RECV_OPCODE = int(lib.IBV_WC_RECV)


class AccessFlags(IntFlag):
    """What a region or a queue pair lets others do (``ibv_access_flags``)."""

    LOCAL_WRITE = lib.IBV_ACCESS_LOCAL_WRITE
    REMOTE_WRITE = lib.IBV_ACCESS_REMOTE_WRITE
    REMOTE_READ = lib.IBV_ACCESS_REMOTE_READ


class QpState(IntEnum):
    """States of a queue pair (``ibv_qp_state``)."""

    RESET = lib.IBV_QPS_RESET
    INIT = lib.IBV_QPS_INIT
    RTR = lib.IBV_QPS_RTR
    RTS = lib.IBV_QPS_RTS
    ERR = lib.IBV_QPS_ERR


class WcStatus(IntEnum):
    """How a work request ended (``ibv_wc_status``)."""

    SUCCESS = lib.IBV_WC_SUCCESS
    LOC_LEN_ERR = lib.IBV_WC_LOC_LEN_ERR
    LOC_QP_OP_ERR = lib.IBV_WC_LOC_QP_OP_ERR
    LOC_PROT_ERR = lib.IBV_WC_LOC_PROT_ERR
    WR_FLUSH_ERR = lib.IBV_WC_WR_FLUSH_ERR
    LOC_ACCESS_ERR = lib.IBV_WC_LOC_ACCESS_ERR
    REM_INV_REQ_ERR = lib.IBV_WC_REM_INV_REQ_ERR
    REM_ACCESS_ERR = lib.IBV_WC_REM_ACCESS_ERR
    REM_OP_ERR = lib.IBV_WC_REM_OP_ERR
    RETRY_EXC_ERR = lib.IBV_WC_RETRY_EXC_ERR
    RNR_RETRY_EXC_ERR = lib.IBV_WC_RNR_RETRY_EXC_ERR


class WorkCompletion(NamedTuple):
    """``ibv_wc``. If ``status`` is not SUCCESS only ``wr_id``, ``qp_num`` and ``timestamp_ns`` mean something."""

    wr_id: int
    status: int  # WcStatus
    opcode: int  # ibv_wc_opcode
    byte_len: int
    imm_data: int  # host byte order
    qp_num: int
    src_qp: int
    timestamp_ns: int

    @property
    def is_recv(self) -> bool:
        """Of a receive request."""
        return self.opcode >= _FIRST_RECV_OPCODE
