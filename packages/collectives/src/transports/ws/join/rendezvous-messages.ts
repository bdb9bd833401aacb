// What a rank and the rendezvous say to each other, as JSON text, after the handshake:
//   rank        here { address }                  once: where it listens
//   rendezvous  table { addresses }               when all have come: where each rank listens
//   rank        linked                            it has its connections to all others
//   rendezvous  formed                            all have; the rendezvous is over
//   either      failed { origin, reason }         the job will not form

/** Where a rank listens. */
export interface PeerAddress {
  /** null: the host and port at which the rendezvous was met. */
  readonly host: string | null;
  /** 0: this rank can't listen. */
  readonly port: number;
  /** Whether it sends heartbeats to whoever listens, beside what it says over its links. */
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
