// What a rank and its heartbeat worker say to each other, in Node and in pages. The worker has the
// connections, the rank's own thread the secret: each handshake is passed through.

/** `id` names a connection: from 0 those that the rank opened, below 0 those that were accepted. */
export type HeartbeatCommand =
  | { readonly type: 'open'; readonly id: number; readonly url: string; readonly tls: HeartbeatTls }
  | { readonly type: 'send'; readonly id: number; readonly bytes: Uint8Array }
  | { readonly type: 'trust'; readonly id: number }
  | { readonly type: 'beat'; readonly id: number }
  /** Without a code the connection is dropped. */
  | { readonly type: 'close'; readonly id: number; readonly code?: number; readonly reason: string }
  /** Node only. */
  | { readonly type: 'listen'; readonly options: HeartbeatListening }
  | { readonly type: 'stop listening' };

export type HeartbeatEvent =
  | { readonly type: 'open'; readonly id: number }
  /** The code of its close frame; 1006: it had none. */
  | {
      readonly type: 'closed';
      readonly id: number;
      readonly code: number;
      readonly reason: string;
    }
  | { readonly type: 'binary'; readonly id: number; readonly bytes: Uint8Array }
  /** Port 0: it could not. */
  | { readonly type: 'listening'; readonly port: number }
  | { readonly type: 'stopped listening' }
  | { readonly type: 'accepted'; readonly id: number; readonly from: string }
  | { readonly type: 'refused'; readonly from: string; readonly reason: string };

/** To a page's worker, which also keeps the time: it answers so much later. */
export type PageHeartbeatCommand =
  | HeartbeatCommand
  | { readonly type: 'look'; readonly afterMs: number };

export type PageHeartbeatEvent =
  | HeartbeatEvent
  /** Once: it has started. */
  | { readonly type: 'ready' }
  | { readonly type: 'look' };

/** For wss in Node: what `tls.connect` takes, or a key of `tlsKeyOf`. */
export type HeartbeatTls = object | { readonly key: Uint8Array };

/** How a heartbeat worker listens: what strangers may cost is as for any listener. */
export interface HeartbeatListening {
  readonly host: string;
  readonly allowedOrigins: readonly string[];
  /** PEM; null: without TLS. */
  readonly tls: { readonly key: string | Buffer; readonly cert: string | Buffer } | null;
  /** The key that `tlsKeyOf` makes of the secret; null where there is no TLS by the secret. */
  readonly key: Uint8Array | null;
  /** Whether peers of this host may speak in the clear beside it. */
  readonly mayBePlain: boolean;
  readonly maxStrangers: number;
  readonly maxJoinsPerSecond: number;
  readonly proofMs: number;
}
