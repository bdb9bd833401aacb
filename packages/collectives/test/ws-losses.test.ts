// When connections end, a rank names the likeliest of those that are lost at once as the cause, and
// all the others too. The test makes the ends, the time and the beats, so each order happens every
// time.

import type { ControlMessage, TransportListener } from '@shardweave/collectives';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import type { HeartbeatSender } from '../src/transports/ws/heartbeat/heartbeat-sender.js';
import { WsLink } from '../src/transports/ws/link/ws-link.js';
import { WsTransport } from '../src/transports/ws/link/ws-transport.js';
import { ScriptedSocket } from './support/scripted-socket.js';

const HEARTBEAT_MS = 250;
const SILENCE_MS = 4000;
const BEAT = new Uint8Array(0);
const SIGN = Uint8Array.of(1);

beforeEach(() => {
  vi.useFakeTimers();
});

afterEach(() => {
  vi.useRealTimers();
});

const noSender = { beat: () => {}, close: async () => {} } as Partial<HeartbeatSender>;

/**
 * Makes rank 0 of four ranks, with its links to the others, and records what its transport reports
 * of them.
 */
function rankOfFour(
  options: { readonly relayed?: readonly number[]; readonly isForming?: boolean } = {},
) {
  const said: string[] = [];
  const lost: number[] = [];
  const listener = {
    onPeerLost: (peer: number, reason: string, ranks: readonly number[]) => {
      said.push(`peer ${peer}: ${reason}`);
      lost.push(...ranks);
    },
    onPeerLeft: (peer: number) => said.push(`peer ${peer} left`),
    onControl: (from: number, message: ControlMessage) =>
      said.push(`told by ${from}: ${JSON.stringify(message)}`),
    onRelayLost: (reason: string) => said.push(`relay: ${reason}`),
  } as Partial<TransportListener> as TransportListener;
  const transport = new WsTransport({ listener, rank: 0, worldSize: 4, heartbeatMs: HEARTBEAT_MS });
  const form = () => transport.formed(() => ({ silenceMs: SILENCE_MS, saysAlive: false }));
  const links = new Map<number, ScriptedSocket>();
  const hearts = new Map<number, ScriptedSocket>();
  const addLink = (peer: number, mayReturn = true) => {
    const link = new ScriptedSocket();
    const isRelayed = options.relayed?.includes(peer) === true;
    links.set(peer, link);
    transport.addLink(new WsLink(link, peer, transport), { isRelayed, mayReturn });
    return link;
  };
  const addHeart = (peer: number) => {
    const heart = new ScriptedSocket();
    const isRelayed = options.relayed?.includes(peer) === true;
    hearts.set(peer, heart);
    transport.addHeartbeatSocket(peer, heart, { isFatal: !isRelayed });
    return heart;
  };
  for (const peer of [1, 2, 3]) {
    addLink(peer);
    addHeart(peer);
  }
  if (options.isForming !== true) {
    form();
  }
  /**
   * Lets time pass with beats of these peers, and with a sign of the relay beside each where `sign`
   * is true.
   */
  const beat = (peers: readonly number[], ms: number, sign = false) => {
    for (let at = 0; at < ms; at += HEARTBEAT_MS) {
      for (const peer of peers) {
        hearts.get(peer)!.handler!.onBinary(BEAT);
      }
      if (sign) {
        hearts.get(1)!.handler!.onBinary(SIGN);
      }
      vi.advanceTimersByTime(HEARTBEAT_MS);
    }
  };
  const end = (peer: number, code: number, reason = '') =>
    links.get(peer)!.handler!.onClose(code, reason);
  const endHeart = (peer: number, code = 1006, reason = 'no more beats') =>
    hearts.get(peer)!.handler!.onClose(code, reason);
  return { transport, links, said, lost, beat, end, endHeart, addLink, addHeart, form };
}

describe('of peers that are lost at once', () => {
  it.each([
    ['those that are gone count as lost, and one that gave up does not', 1006, [1, 3]],
    ['all count as lost that are gone', 1006, [1, 2, 3]],
    ['none counts as lost where all gave up', 4001, []],
  ])('%s', (_, code, expected) => {
    const { lost, end } = rankOfFour();
    end(2, expected.length === 3 ? code : 4001);
    end(1, code);
    end(3, code);
    vi.advanceTimersByTime(150);
    expect([...lost].sort()).toEqual(expected);
  });

  it('all are named, the first one as the origin', () => {
    const { said, end } = rankOfFour();
    end(2, 1006);
    end(1, 1006);
    vi.advanceTimersByTime(149);
    expect(said).toEqual([]); // Another rank may know the cause, and its message may be on its way.
    vi.advanceTimersByTime(1);
    expect(said).toEqual([
      'peer 2: its connection closed, code 1006; rank 1 is lost, too: its connection closed, code 1006',
    ]);
  });

  it('one that died is the origin, though another had given up because of it before', () => {
    const { said, end } = rankOfFour();
    end(1, 4001);
    end(3, 1006, 'read ECONNRESET');
    vi.advanceTimersByTime(1000);
    expect(said).toEqual([
      'peer 3: read ECONNRESET; rank 1 is lost, too: its connection closed, it has failed, and could not say why',
    ]);
  });

  it('one with a link of its own is the origin before those that it relays', () => {
    const { said, end } = rankOfFour({ relayed: [2, 3] });
    end(2, 1006);
    end(3, 1006);
    end(1, 1006);
    vi.advanceTimersByTime(1000);
    expect(said).toEqual([expect.stringMatching(/^peer 1: .*; rank 2 is lost, too.*; rank 3/)]);
  });
});

describe('while the job forms', () => {
  it('a peer whose connections have ended may come again', () => {
    const { said, end, endHeart, addLink, addHeart, form } = rankOfFour({ isForming: true });
    end(1, 1006);
    endHeart(1);
    endHeart(2);
    vi.advanceTimersByTime(10_000);
    addLink(1);
    addHeart(1);
    addHeart(2);
    form();
    vi.advanceTimersByTime(1000);
    expect(said).toEqual([]);
  });

  it.each(['end', 'endHeart'] as const)('what has ended (%s) counts in the end', (ends) => {
    const rank = rankOfFour({ isForming: true });
    rank[ends](3, 1006, 'no more beats');
    vi.advanceTimersByTime(10_000);
    expect(rank.said).toEqual([]);
    rank.form();
    vi.advanceTimersByTime(1000);
    expect(rank.said).toEqual(['peer 3: no more beats']);
  });

  it('the end of a link that this rank has opened is a loss at once', () => {
    const { said, end, addLink } = rankOfFour({ isForming: true });
    addLink(0, false);
    end(0, 1006);
    vi.advanceTimersByTime(1000);
    expect(said).toEqual([expect.stringMatching(/^peer 0: its connection closed/)]);
  });

  it('a newer connection takes the place of an older one, and afterwards never', () => {
    const { said, addLink, addHeart, form } = rankOfFour({ isForming: true });
    const older = [addLink(1), addHeart(1)];
    const newer = [addLink(1), addHeart(1)];
    form();
    const late = [addLink(1), addHeart(1)];
    vi.advanceTimersByTime(1000);
    expect([older, newer, late].map((pair) => pair.map(({ hasEnded }) => hasEnded))).toEqual([
      [true, true],
      [false, false],
      [true, true],
    ]);
    expect(said).toEqual([]);
  });
});

describe('the word that a rank is lost', () => {
  it('goes to it over a connection of its own, and its link stays open for it', () => {
    const { transport, links, said, beat } = rankOfFour();
    transport.heartbeats.sender = noSender as HeartbeatSender;
    const beating = [1, 2, 3].map((peer) => {
      const socket = new ScriptedSocket();
      transport.heartbeats.beatTo(peer, socket);
      return socket;
    });
    beat([1, 2], 6000);
    expect(said).toEqual(['peer 3: silent for 4000 ms']);
    expect(beating.map(({ closed }) => closed)).toEqual(['', '', '4001 silent for 4000 ms']);
    expect(links.get(3)!.hasEnded).toBe(false);
  });

  it('is taken by it for a failure of its own, told by a peer', () => {
    const { said, endHeart } = rankOfFour();
    endHeart(2, 4001, 'silent for 4000 ms');
    const failure = { kind: 'peer-lost', origin: 0, reason: 'silent for 4000 ms' };
    expect(said).toEqual([`told by 2: ${JSON.stringify({ type: 'failure', failure })}`]);
  });
});

describe('a peer that leaves in peace', () => {
  it('is not lost when its heartbeat ends after its link', () => {
    const { said, end, endHeart } = rankOfFour();
    end(1, 4000);
    endHeart(1);
    vi.advanceTimersByTime(1000);
    expect(said).toEqual(['peer 1 left']);
  });

  it('ends its beats when its links have ended', async () => {
    const { transport, end } = rankOfFour();
    const order: string[] = [];
    const close = async () => void order.push('beats');
    transport.heartbeats.sender = { ...noSender, close } as HeartbeatSender;
    const closing = transport.close('drain').then(() => order.push('closed'));
    await Promise.resolve();
    for (const peer of [1, 2, 3]) {
      order.push(`link ${peer}`);
      end(peer, 4000);
    }
    await closing;
    expect(order).toEqual(['link 1', 'link 2', 'link 3', 'beats', 'closed']);
  });
});

describe('a relay', () => {
  const relayed = [1, 2, 3];

  it('a relay whose connections end without a word is named, and no peer', () => {
    const { said, end } = rankOfFour({ relayed });
    end(1, 1006);
    end(2, 1006);
    vi.advanceTimersByTime(1000);
    expect(said).toEqual([
      expect.stringMatching(/^relay: .* on the way to rank 1; rank 2 is lost/),
    ]);
  });

  it('a relay that says how a connection ended has the peer behind it named', () => {
    const { said, end } = rankOfFour({ relayed });
    end(2, 4002, "the peer's connection closed, code 1006");
    vi.advanceTimersByTime(1000);
    expect(said).toEqual(["peer 2: the peer's connection closed, code 1006"]);
  });

  it('a relay that falls silent with its peers is named, and no peer', () => {
    const { said, beat } = rankOfFour({ relayed });
    beat(relayed, 2000, true);
    vi.advanceTimersByTime(10_000);
    expect(said).toEqual([
      expect.stringMatching(/^relay: silent for 4000 ms, on the way to rank 1/),
    ]);
  });

  it('a relay that goes on giving its sign has the silent peer named', () => {
    const { said, beat } = rankOfFour({ relayed });
    beat(relayed, 2000, true);
    beat([1, 2], 10_000, true);
    expect(said).toEqual(['peer 3: silent for 4000 ms']);
  });

  it('a relay that has never given a sign leaves neither certain', () => {
    const { said, beat } = rankOfFour({ relayed });
    beat([1, 2], 10_000);
    expect(said).toEqual([
      'peer 3: silent for 4000 ms, by way of the relay, which may be what is gone',
    ]);
  });
});

describe('a heartbeat worker', () => {
  it.each([
    ['ends with its transport', false, 1],
    ['is left for the next epoch, without the connections of this one', true, 0],
  ])('%s', async (_, keepsSender, numEnds) => {
    const listener = {} as TransportListener;
    const options = { listener, rank: 0, worldSize: 2, heartbeatMs: HEARTBEAT_MS, keepsSender };
    const transport = new WsTransport(options);
    let ends = 0;
    const close = async () => {
      ends++;
    };
    transport.heartbeats.sender = { ...noSender, close } as HeartbeatSender;
    const beating = new ScriptedSocket();
    transport.heartbeats.beatTo(1, beating);
    await transport.close('drop');
    expect([ends, beating.hasEnded]).toEqual([numEnds, keepsSender]);
  });
});
