// A rank of another process as the rendezvous sees it: the messages that come over its socket
// become calls.

import { REFUSED_CODE } from '../../../sockets/authenticate.js';
import type { WireSocket } from '../../../sockets/wire-socket.js';
import { parseRankMessage } from './parse-rendezvous-message.js';
import type { Rendezvous } from './rendezvous.js';
import type { RankMessage } from './rendezvous-messages.js';

/** The milliseconds in which a rank that is asked has to answer; one that joins is not busy. */
const ANSWER_MS = 2000;

/** Takes an authenticated socket of role 'rendezvous'. `fromHost` is where it comes from. */
export async function hostMember(
  rendezvous: Rendezvous,
  rank: number,
  socket: WireSocket,
  fromHost: string,
): Promise<void> {
  let isDismissed = false;
  const refusal = await rendezvous.claim(rank, {
    send: (message) => {
      socket.sendText(JSON.stringify(message));
      if (message.type !== 'table') {
        socket.close(1000, '');
      }
    },
    answers: () => socket.answers?.(ANSWER_MS) ?? Promise.resolve(true),
    dismiss: (reason) => {
      isDismissed = true;
      socket.close(REFUSED_CODE, reason);
    },
  });
  if (refusal !== undefined) {
    socket.close(REFUSED_CODE, refusal);
    return;
  }
  socket.setHandler({
    onBinary: () => rendezvous.onFailed(rank, `rank ${rank} sent bytes to the rendezvous`),
    onText: (text) => {
      if (isDismissed) {
        return;
      }
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
    onClose: (code, reason) => {
      if (!isDismissed) {
        rendezvous.onLeft(rank, reason || `code ${code}`);
      }
    },
  });
}
