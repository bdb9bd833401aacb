// A rank that meets the others at a rendezvous of another process, as the rendezvous sees it: its
// messages, read off its socket, become calls.

import { parseRankMessage } from './parse-message.js';
import type { Rendezvous } from './rendezvous.js';
import type { RankMessage } from './rendezvous-messages.js';
import type { WireSocket } from './wire-socket.js';

/** Takes a proven socket of role 'rendezvous'. `fromHost` is where it comes from. */
export function hostMember(
  rendezvous: Rendezvous,
  rank: number,
  socket: WireSocket,
  fromHost: string,
): void {
  if (rendezvous.refusalOf(rank) !== undefined) {
    socket.terminate(); // the same rank twice at once
    return;
  }
  rendezvous.join(rank, {
    send: (message) => {
      socket.sendText(JSON.stringify(message));
      if (message.type !== 'table') {
        socket.close(1000, '');
      }
    },
  });
  socket.setHandler({
    onBinary: () => rendezvous.onFailed(rank, `rank ${rank} sent bytes to the rendezvous`),
    onText: (text) => {
      let message: RankMessage;
      try {
        message = parseRankMessage(text);
      } catch (error) {
        rendezvous.onFailed(rank, `rank ${rank}: ${(error as Error).message}`);
        return;
      }
      if (message.type === 'here') {
        const { host, port, beats } = message.address;
        rendezvous.onHere(rank, { host: host ?? fromHost, port, beats });
      } else if (message.type === 'linked') {
        rendezvous.onLinked(rank);
      } else {
        rendezvous.onFailed(rank, message.reason);
      }
    },
    onClose: (code, reason) => rendezvous.onLeft(rank, reason || `code ${code}`),
  });
}
