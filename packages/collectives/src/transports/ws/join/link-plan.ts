// Decides which of two ranks opens the link between them. Both decide alike, from the table of
// addresses.

import type { PeerAddress } from './rendezvous-messages.js';

/**
 * 'open': this rank opens the link; 'await': the peer does; 'relay': neither listens, and both meet
 * at the relay.
 */
export type LinkPart = 'open' | 'await' | 'relay';

/** The higher rank opens the link, unless only it can listen. */
export function linkPart(rank: number, peer: number, addresses: readonly PeerAddress[]): LinkPart {
  const listens = (r: number) => addresses[r]!.port !== 0;
  if (!listens(rank) && !listens(peer)) {
    return 'relay';
  }
  if (listens(rank) && listens(peer)) {
    return rank > peer ? 'open' : 'await';
  }
  return listens(peer) ? 'open' : 'await';
}
