// Members hear of an epoch at different times: who dials one that has not heard of it waits there,
// and who is of an epoch that is over, or of another job, is refused.

import { describe, expect, it } from 'vitest';
import { systemClock } from '../src/clock.js';
import type { Table } from '../src/membership/messages.js';
import { type Hello, runDigest } from '../src/sockets/handshake.js';
import type { ListenOptions, SocketPlatform } from '../src/sockets/socket-platform.js';
import { EpochSockets } from '../src/transports/ws/elastic/epoch-sockets.js';
import type { JoinerOptions } from '../src/transports/ws/join/joiner-options.js';
import type { PeerAddress } from '../src/transports/ws/join/rendezvous-messages.js';
import { ScriptedSocket } from './support/scripted-socket.js';

const run = runDigest('run');

/** Member 4, which listens, and what its listener asks it. */
async function listening() {
  let asked: ListenOptions | undefined;
  const sockets: SocketPlatform = {
    maxRetryMs: 1,
    open: () => Promise.reject(new Error('nobody is dialled here')),
    listen: async (options) => {
      asked = options;
      return { port: 7, close: () => {} };
    },
  };
  const options: JoinerOptions = {
    rank: 0,
    worldSize: 4,
    attempt: 0,
    run,
    secret: 'made by the launcher',
    rendezvous: { host: '127.0.0.1', port: 1, isHosted: false },
    schemeTo: () => 'ws',
    listen: {},
    joinTimeoutMs: 1000,
    clock: systemClock,
    proofMs: 1000,
    onListen: undefined,
    route: (_, address) => address,
    heartbeatMs: 100,
    silenceMs: 1000,
    linkSilenceMs: 1000,
  };
  const linker = new EpochSockets({ groupOptions: {}, options, sockets, sender: undefined });
  await linker.listen('127.0.0.1');
  const dial = (hello: Hello): ScriptedSocket | string => {
    const refusal = asked!.refusalOf(hello);
    if (refusal !== undefined) {
      return refusal;
    }
    const socket = new ScriptedSocket();
    asked!.onPeer(hello, socket, '127.0.0.1');
    return socket;
  };
  return { linker, dial };
}

/** What a peer says that dials rank 0 of two in an epoch. */
const helloOf = (attempt: number, other: Partial<Hello> = {}): Hello => ({
  role: 'link',
  rank: 1,
  target: 0,
  worldSize: 2,
  attempt,
  run,
  ...other,
});

const address = { host: '127.0.0.1', port: 9, beats: false };
const tableOf = (epoch: number): Table<PeerAddress> => ({
  epoch,
  members: [4, 6].map((id) => ({ id, address, step: 0, note: '' })),
  before: [],
  source: 0,
});

/** The ids to which the member has links, once there is one. */
function linkedIn(linker: EpochSockets, epoch: number): Promise<readonly number[]> {
  return new Promise((resolve) => {
    const linked = (peers: readonly number[]) => {
      if (peers.length > 0) {
        resolve(peers);
      }
    };
    linker.link(tableOf(epoch), 0, { linked, lost: () => {} });
  });
}

describe('a peer that has heard of an epoch first', () => {
  it('waits until the member hears of it, and is linked then', async () => {
    const { linker, dial } = await listening();
    const socket = dial(helloOf(3)) as ScriptedSocket;
    expect(socket.handler).toBeUndefined();
    expect(await linkedIn(linker, 3)).toEqual([6]);
    expect(socket.handler).toBeDefined();
    socket.terminate(); // the closing of a link waits a second for its peer
    await linker.close();
  });

  it('is refused where the epoch turns out to be another one', async () => {
    const { linker, dial } = await listening();
    const wrong = dial(helloOf(3, { worldSize: 5 })) as ScriptedSocket;
    const old = dial(helloOf(2)) as ScriptedSocket;
    const right = dial(helloOf(3)) as ScriptedSocket;
    await linkedIn(linker, 3);
    expect(wrong.closed).toBe('4401 world size is 2 here, not 5');
    expect(old.closed).toBe('4401 epoch 2 is over, this is epoch 3');
    expect(right.closed).toBe('');
    right.terminate();
    await linker.close();
  });

  it('is refused where hundreds wait', async () => {
    const { linker, dial } = await listening();
    const all = Array.from({ length: 513 }, () => dial(helloOf(3)) as ScriptedSocket);
    expect(all.map(({ closed }) => closed).filter((closed) => closed !== '')).toEqual([
      '4401 too many wait here for an epoch',
    ]);
    await linker.close();
    expect(all.every(({ hasEnded, closed }) => hasEnded || closed !== '')).toBe(true);
  });
});

describe('who is refused by a member', () => {
  it.each([
    ['another run', helloOf(3, { run: runDigest('other') }), /this is another run/],
    ['an epoch that is over', helloOf(2), /epoch 2 is over, this is epoch 3/],
    ['another rank', helloOf(3, { target: 1 }), /this is rank 0, not 1/],
    ['itself', helloOf(3, { rank: 0 }), /rank 0 is here already/],
    ['a rank that is none', helloOf(3, { rank: 2 }), /there is no rank 2/],
    ['another role', helloOf(3, { role: 'relay' }), /no relay here/],
  ])('%s', async (_, hello, reason) => {
    const { linker, dial } = await listening();
    linker.link(tableOf(3), 0, { linked: () => {}, lost: () => {} });
    expect(dial(hello)).toMatch(reason);
    await linker.close();
  });

  it('all of an epoch that has ended here', async () => {
    const { linker, dial } = await listening();
    const links = linker.link(tableOf(3), 0, { linked: () => {}, lost: () => {} });
    links.end('its members change', []);
    expect(dial(helloOf(3))).toBe('epoch 3 is over (its members change)');
    await linker.close();
  });
});
