// The messages between a rank and the rendezvous, as JSON text, after the handshake:
//   rank        here { address }                  once: where it listens
//   rendezvous  table { addresses }               when all have come: where each rank listens
//   rank        linked                            it has its connections to all others
//   rendezvous  formed                            all have; the rendezvous is over
//   either      failed { origin, reason }         the job will not form

/** The address at which a rank listens. */
export interface PeerAddress {
  /** null stands for the host and port at which the rendezvous was met. */
  readonly host: string | null;
  /** The port; 0 where this rank can't listen. */
  readonly port: number;
  /** Whether it sends heartbeats to ranks that listen, beside what it sends over its links. */
  readonly beats: boolean;
}

export type RankMessage =
  | { readonly type: 'here'; readonly address: PeerAddress }
  | { readonly type: 'linked' }
  | { readonly type: 'failed'; readonly reason: string };

export type RendezvousMessage =
  | { readonly type: 'table'; readonly addresses: readonly PeerAddress[] }
  | { readonly type: 'formed' }
  | { readonly type: 'failed'; readonly origin: number; readonly reason: string };
