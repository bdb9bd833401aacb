// What a test and its ranks, processes of their own, say to each other.

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
      /** Options of connectWs, as they are. */
      readonly listen?: false;
      readonly rendezvous?: 'elsewhere';
      readonly silenceMs?: number;
    }
  | { readonly type: 'disagree'; readonly about: 'operation' | 'dtype' | 'size' }
  /** The second with 8 MiB on their way to each peer, and no turn of the event loop in between. */
  | { readonly type: 'abort' | 'abort and exit'; readonly reason: string }
  | { readonly type: 'leave' | 'stop' | 'exit' }
  | { readonly type: 'compute'; readonly ms: number }
  | { readonly type: 'routed'; readonly id: number; readonly address: Address };

/** A call that rejected (or, of later calls, did not). */
export interface EndedCall {
  readonly call: string;
  readonly code: string;
  readonly originRank: number;
  readonly message: string;
  /** As of Date.now(), which all processes share. */
  readonly atMs: number;
}

export type RankReport =
  | { readonly type: 'listening'; readonly port: number }
  | { readonly type: 'joined' }
  | { readonly type: 'unjoined'; readonly message: string }
  | { readonly type: 'computed'; readonly numRounds: number }
  | {
      readonly type: 'ended';
      /** Those that were pending. */
      readonly calls: readonly EndedCall[];
      /** Those made afterwards. */
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
