// The messages between a rank and its heartbeat worker, in Node and in pages. The worker has the
// connections and the rank's own thread has the secret, so each handshake is passed through.

import type { ListenerPolicy, TurnedAway } from '../../../sockets/listener.js';
import type { ClientTls } from '../../../sockets/tls-psk.js';

/**
 * A command to the worker. `id` names a connection: from 0 on those that the rank opened, below 0
 * those that were accepted.
 */
export type HeartbeatCommand =
  /** The first command. */
  | { readonly type: 'start'; readonly heartbeatMs: number }
  | {
      readonly type: 'open';
      readonly id: number;
      readonly url: string;
      readonly tls: ClientTls;
    }
  | { readonly type: 'send'; readonly id: number; readonly bytes: Uint8Array }
  | { readonly type: 'trust'; readonly id: number }
  | { readonly type: 'beat'; readonly id: number }
  /** Ends a connection; without a code it is dropped. */
  | { readonly type: 'close'; readonly id: number; readonly code?: number; readonly reason: string }
  /** In Node only. */
  | { readonly type: 'listen'; readonly host: string; readonly policy: ListenerPolicy }
  | { readonly type: 'stop listening' };

/** See WireSocket. */
type Session = Uint8Array | undefined;

export type HeartbeatEvent =
  | { readonly type: 'open'; readonly id: number; readonly session?: Session }
  /** A connection ended, with the code of its close frame, or 1006 where it had none. */
  | {
      readonly type: 'closed';
      readonly id: number;
      readonly code: number;
      readonly reason: string;
    }
  | { readonly type: 'binary'; readonly id: number; readonly bytes: Uint8Array }
  /** The worker listens; port 0 where it can't. */
  | { readonly type: 'listening'; readonly port: number }
  | { readonly type: 'stopped listening' }
  | {
      readonly type: 'accepted';
      readonly id: number;
      readonly from: string;
      readonly session?: Session;
    }
  | { readonly type: 'refused'; readonly turnedAway: TurnedAway };

/** A command to a page's worker, which also keeps the time: it answers 'look' so much later. */
export type PageHeartbeatCommand =
  | HeartbeatCommand
  | { readonly type: 'look'; readonly afterMs: number };

export type PageHeartbeatEvent =
  | HeartbeatEvent
  /** Sent once, when the worker has started. */
  | { readonly type: 'ready' }
  | { readonly type: 'look' };

/**
 * The unsent bytes of a connection above which it gets no further beat: a peer that reads nothing
 * is silent itself, and beats that it has not read need not pile up.
 */
export const MAX_UNREAD_BYTES = 1024;
