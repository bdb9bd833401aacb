// A test and its ranks, which are processes of their own, exchange these messages.

export interface Address {
  readonly host: string;
  readonly port: number;
}

export type RankCommand =
  | {
      readonly type: 'join';
      readonly rank: number;
      readonly worldSize: number;
      readonly address: string;
      readonly port: number;
      readonly secret: string;
      readonly attempt: number;
      readonly isRouted: boolean;
      /** Options of connectWs, passed on unchanged. */
      readonly listen?: false;
      readonly rendezvous?: 'elsewhere';
      readonly silenceMs?: number;
    }
  | { readonly type: 'disagree'; readonly about: 'operation' | 'dtype' | 'size' }
  /**
   * On 'abort and exit' the rank aborts with 8 MiB on their way to each peer, and exits in the same
   * turn of the event loop.
   */
  | { readonly type: 'abort' | 'abort and exit'; readonly reason: string }
  | { readonly type: 'leave' | 'stop' | 'exit' }
  | { readonly type: 'compute'; readonly ms: number }
  | { readonly type: 'routed'; readonly id: number; readonly address: Address };

/** A call that rejected, or a later call that should have. */
export interface EndedCall {
  readonly call: string;
  readonly code: string;
  readonly originRank: number;
  readonly message: string;
  /** The time by Date.now(), which all processes share. */
  readonly atMs: number;
}

export type RankReport =
  | { readonly type: 'listening'; readonly port: number }
  | { readonly type: 'joined' }
  | { readonly type: 'unjoined'; readonly message: string }
  | { readonly type: 'computed'; readonly numRounds: number }
  | {
      readonly type: 'ended';
      /** The calls that were pending. */
      readonly calls: readonly EndedCall[];
      /** The calls that were made afterwards. */
      readonly later: readonly EndedCall[];
      readonly numRounds: number;
    }
  | {
      readonly type: 'route';
      readonly id: number;
      readonly target: number | 'rendezvous';
      readonly address: Address;
    };

export type Ended = Extract<RankReport, { type: 'ended' }>;
