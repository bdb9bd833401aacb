// The key-value store is tested over real sockets: what its calls do, what it refuses, and how it
// ends.

import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import {
  type ConnectStoreOptions,
  connectStore,
  type Store,
  StoreError,
  StoreServer,
  type StoreServerOptions,
} from '@shardweave/collectives/launch';
import { connectWs } from '@shardweave/collectives/ws';
import { afterEach, describe, expect, it } from 'vitest';

const SECRET = 'made by the launcher';
const opened: AsyncDisposable[] = [];

afterEach(async () => {
  for (const one of opened.splice(0).reverse()) {
    await one[Symbol.asyncDispose]();
  }
});

async function serve(options: Partial<StoreServerOptions> = {}) {
  const server = await StoreServer.listen({ secret: SECRET, ...options });
  opened.push(server);
  const connect = async (more: Partial<ConnectStoreOptions> = {}): Promise<Store> => {
    const store = await connectStore({ port: server.port, secret: SECRET, ...more });
    opened.push(store);
    return store;
  };
  const connectRanks = (worldSize: number, more: Partial<ConnectStoreOptions> = {}) =>
    Promise.all(
      Array.from({ length: worldSize }, (_, rank) => connect({ rank, worldSize, ...more })),
    );
  return { server, connect, connectRanks };
}

async function rejection(promise: Promise<unknown>): Promise<StoreError> {
  const error = await promise.then(
    () => undefined,
    (reason: unknown) => reason,
  );
  expect(error).toBeInstanceOf(StoreError);
  return error as StoreError;
}

/**
 * Resolves when the server has taken all earlier requests of this client, since it answers in
 * order.
 */
async function isHeard(store: Store): Promise<void> {
  await store.numKeys();
}

describe('keys and values', () => {
  it('are what was set last, bytes or text, and a client sees what another set', async () => {
    const { connectRanks } = await serve();
    const [a, b] = (await connectRanks(2)) as [Store, Store];
    await a.set('text', 'grüße');
    await a.set('bytes', Uint8Array.of(0, 255, 128));
    await a.set('text', 'again');
    await a.set('nothing', '');
    expect(await b.getText('text')).toBe('again');
    expect(await b.get('bytes')).toEqual(Uint8Array.of(0, 255, 128));
    expect(await b.get('nothing')).toEqual(new Uint8Array(0));
    expect(await b.numKeys()).toBe(3);
  });

  it('travel whole when they are larger than a piece of a message', async () => {
    const { connect } = await serve();
    const store = await connect();
    const value = Uint8Array.from({ length: 1_000_003 }, (_, i) => (i * 31) >> 3);
    await store.set('large', value);
    expect(Buffer.compare(await store.get('large'), value)).toBe(0);
  });

  it('take effect in the order of the calls, answered or not', async () => {
    const { connect } = await serve();
    const store = await connect();
    const calls = [store.add('n', 5), store.add('n', 6), store.deleteKey('n'), store.add('n', 1)];
    expect(await Promise.all(calls)).toEqual([5, 11, true, 1]);
  });

  it('get waits until somebody sets the key', async () => {
    const { connectRanks } = await serve();
    const [a, b] = (await connectRanks(2)) as [Store, Store];
    let isThere = false;
    const value = a.getText('late').then((text) => {
      isThere = true;
      return text;
    });
    await b.set('other', '1');
    await isHeard(a);
    expect(isThere).toBe(false);
    await b.set('late', 'here');
    expect(await value).toBe('here');
  });

  it('wait resolves with the last of its keys, and names those that are missing', async () => {
    const { connectRanks } = await serve();
    const [a, b] = (await connectRanks(2)) as [Store, Store];
    let areThere = false;
    const both = a.wait(['x', 'y']).then(() => {
      areThere = true;
    });
    await b.set('x', '1');
    await isHeard(a);
    expect(areThere).toBe(false);
    await b.set('y', '2');
    await both;
    const error = await rejection(a.wait(['x', 'z', 'w'], { timeoutMs: 30 }));
    expect(error).toMatchObject({ code: 'STORE_TIMEOUT', keys: ['z', 'w'] });
    expect(error.message).toBe('store wait: nobody has set "z", "w" within 30 ms');
    expect((await rejection(a.get('z', { timeoutMs: 0 }))).keys).toEqual(['z']);
    expect(await a.check(['x', 'y'])).toBe(true);
    expect(await a.check(['x', 'z'])).toBe(false);
    expect(await a.check([])).toBe(true);
  });

  it('deleteKey says whether there was one', async () => {
    const { connect } = await serve();
    const store = await connect();
    await store.set('k', 'v');
    expect(await store.deleteKey('k')).toBe(true);
    expect(await store.deleteKey('k')).toBe(false);
    expect(await store.check(['k'])).toBe(false);
  });

  it('add counts exactly when several clients add at once', async () => {
    const { connectRanks } = await serve();
    const stores = await connectRanks(4);
    const sums = await Promise.all(
      stores.flatMap((store) => Array.from({ length: 50 }, () => store.add('n', 1))),
    );
    expect([...sums].sort((a, b) => a - b)).toEqual(Array.from({ length: 200 }, (_, i) => i + 1));
    expect(await stores[0]!.getText('n')).toBe('200');
    expect(await stores[0]!.add('n', -201)).toBe(-1);
  });

  it('add refuses what is no integer, and a sum that is not exact', async () => {
    const { connect } = await serve();
    const store = await connect();
    await store.set('word', 'seven');
    expect((await rejection(store.add('word', 1))).message).toBe(
      'store add "word": its value is no integer',
    );
    await store.set('n', String(Number.MAX_SAFE_INTEGER));
    expect(await rejection(store.add('n', 1))).toMatchObject({ code: 'STORE_USAGE' });
    expect(await rejection(store.add('n', 0.5))).toMatchObject({ code: 'STORE_USAGE' });
    expect(await store.getText('n')).toBe(String(Number.MAX_SAFE_INTEGER));
  });

  it('compareSet sets only what is as expected, and one of many wins', async () => {
    const { connectRanks } = await serve();
    const stores = await connectRanks(4);
    const [store] = stores as [Store];
    const elections = await Promise.all(
      stores.map((one, rank) => one.compareSet('leader', undefined, `rank ${rank}`)),
    );
    expect(elections.filter(({ isSet }) => isSet)).toHaveLength(1);
    const leader = await store.getText('leader');
    for (const { value } of elections) {
      expect(Buffer.from(value!).toString()).toBe(leader);
    }
    expect(await store.compareSet('leader', 'nobody', 'x')).toMatchObject({ isSet: false });
    expect(await store.compareSet('leader', leader, 'x')).toMatchObject({ isSet: true });
    expect(await store.getText('leader')).toBe('x');
    expect(await store.compareSet('none', '', 'x')).toEqual({ isSet: false, value: undefined });
  });
});

describe('barrier', () => {
  it('lets no rank go on before the last one comes, and its name can be used again', async () => {
    const { connectRanks } = await serve();
    const stores = await connectRanks(3);
    for (let round = 0; round < 3; round++) {
      const passed: number[] = [];
      const early = [0, 2].map((rank) =>
        stores[rank]!.barrier('step').then(() => passed.push(rank)),
      );
      await Promise.all([0, 2].map((rank) => isHeard(stores[rank]!)));
      expect(passed).toEqual([]);
      await stores[1]!.barrier('step');
      await Promise.all(early);
    }
  });

  it('names the late ranks to those that waited and to those that come later', async () => {
    const { connectRanks } = await serve();
    const stores = await connectRanks(4);
    const patient = rejection(stores[2]!.barrier('b', { timeoutMs: 60_000 }));
    await isHeard(stores[2]!);
    const waiting = [rejection(stores[0]!.barrier('b', { timeoutMs: 60 })), patient];
    for (const error of await Promise.all(waiting)) {
      expect(error).toMatchObject({ code: 'STORE_TIMEOUT', ranks: [1, 3] });
      expect(error.message).toBe('store barrier "b": ranks 1, 3 are late, after 60 ms');
    }
    expect((await rejection(stores[1]!.barrier('b'))).ranks).toEqual([1, 3]);
    const [first, ...others] = stores.map((store) => store.barrier('other'));
    await Promise.all([first, ...others]);
  });

  it('counts a rank that has gone while it waited as late', async () => {
    const { connectRanks } = await serve();
    const stores = await connectRanks(2);
    const gone = rejection(stores[1]!.barrier('b'));
    await isHeard(stores[1]!);
    await stores[1]!.close();
    expect((await gone).code).toBe('STORE_CLOSED');
    expect((await rejection(stores[0]!.barrier('b', { timeoutMs: 50 }))).ranks).toEqual([1]);
  });

  it('is for ranks, once each', async () => {
    const { connect, connectRanks } = await serve();
    const observer = await connect();
    expect(await rejection(observer.barrier('b'))).toMatchObject({ code: 'STORE_USAGE' });
    const [store] = (await connectRanks(2)) as [Store];
    const first = rejection(store.barrier('b', { timeoutMs: 50 }));
    expect((await rejection(store.barrier('b'))).message).toMatch(/rank 0 is in it already/);
    expect((await first).ranks).toEqual([1]);
  });
});

describe('runs and attempts', () => {
  it('see nothing of each other', async () => {
    const { connect } = await serve();
    const [a, b] = [await connect({ runId: 'a' }), await connect({ runId: 'b' })];
    await a.set('k', 'v');
    expect(await b.check(['k'])).toBe(false);
    expect(await b.numKeys()).toBe(0);
  });

  it("begin without their predecessor's values, and send its clients away", async () => {
    const { connect, connectRanks } = await serve();
    const [old] = (await connectRanks(2, { runId: 'a', attempt: 0 })) as [Store];
    await old.set('k', 'of attempt 0');
    const waiting = rejection(old.get('never'));
    const barrier = rejection(old.barrier('b'));
    const restarted = await connect({ runId: 'a', attempt: 1 });
    expect(await restarted.check(['k'])).toBe(false);
    for (const error of [await waiting, await barrier, await rejection(old.set('k', 'zombie'))]) {
      expect(error.code).toBe('STORE_STALE');
      expect(error.message).toBe('store: attempt 1 of this run has begun, this is attempt 0');
    }
    const late = await rejection(connect({ runId: 'a', attempt: 0 }));
    expect(late.code).toBe('STORE_STALE');
    expect(await restarted.numKeys()).toBe(0);
  });

  it('keep their keys while nobody is connected', async () => {
    const { connect } = await serve();
    const first = await connect({ runId: 'a' });
    await first.set('k', 'v');
    await first.close();
    expect(await (await connect({ runId: 'a' })).getText('k')).toBe('v');
  });

  it('have one world size', async () => {
    const { connect } = await serve();
    await connect({ rank: 0, worldSize: 2 });
    const error = await rejection(connect({ rank: 1, worldSize: 3 }));
    expect(error).toMatchObject({ code: 'STORE_JOIN' });
    expect(error.message).toMatch(/world size is 2 here, not 3/);
  });
});

describe('a store refuses', () => {
  it('who does not know the secret, and ranks that look for each other', async () => {
    const { server, connect } = await serve();
    const guess = await rejection(connect({ secret: 'a guess of some length' }));
    expect(guess).toMatchObject({ code: 'STORE_JOIN' });
    expect(guess.message).toMatch(/wrong secret/);
    const rank = connectWs({ rank: 1, worldSize: 2, port: server.port, secret: SECRET });
    await expect(rank).rejects.toThrow(/this is a store/);
    await (await connect()).set('k', 'v');
  });

  it('more than its limits, and goes on', async () => {
    const limits = { maxKeys: 3, maxValueBytes: 100, maxBytes: 300, maxKeyLength: 10 };
    const more = { maxClients: 2, maxPendingCalls: 2, maxKeysPerCall: 2 };
    const { connect, server } = await serve({ limits: { ...limits, ...more } });
    const store = await connect();
    const refused = async (call: Promise<unknown>, text: RegExp) => {
      const error = await rejection(call);
      expect(error.code).toBe('STORE_LIMIT');
      expect(error.message).toMatch(text);
    };
    await refused(store.set('k', new Uint8Array(101)), /at most 100 bytes, got 101/);
    await refused(store.set('a key of 14 ch', 'v'), /at most 10 characters, got 14/);
    await refused(store.wait(['a', 'b', 'c']), /at most 2 keys, got 3/);
    const waits = ['p', 'q'].map((key) => rejection(store.get(key, { timeoutMs: 100 })));
    await refused(store.get('r'), /2 calls of this client wait already/);
    await Promise.all(waits);
    for (const key of ['a', 'b']) {
      await store.set(key, new Uint8Array(100));
    }
    await refused(store.set('c', new Uint8Array(100)), /takes 300 at most/);
    await store.set('c', 'v');
    await refused(store.set('d', 'v'), /has 3 keys and takes no more/);
    await store.deleteKey('a');
    await store.set('d', 'v');
    await connect();
    expect((await rejection(connect())).message).toMatch(/2 clients are here already/);
    expect(server.numClients).toBe(2);
  });

  it('invalid keys and numbers', async () => {
    const { connect } = await serve();
    const store = await connect();
    expect(await rejection(store.set('', 'v'))).toMatchObject({ code: 'STORE_USAGE' });
    const call = rejection(store.get('k', { timeoutMs: -1 }));
    expect((await call).message).toMatch(/timeoutMs to be an integer from 0/);
    expect(await rejection(connect({ rank: 1 }))).toMatchObject({ code: 'STORE_JOIN' });
  });
});

describe('an end', () => {
  it('of the server rejects all that wait and all that comes later', async () => {
    const { server, connectRanks } = await serve();
    const [store] = (await connectRanks(2)) as [Store];
    const pending = [store.get('k'), store.wait(['k']), store.barrier('b')].map(rejection);
    await isHeard(store);
    await server.close();
    for (const error of await Promise.all(pending)) {
      expect(error.code).toBe('STORE_LOST');
    }
    expect((await rejection(store.numKeys())).code).toBe('STORE_LOST');
  });

  it('of the client rejects what waits, and the server forgets it', async () => {
    const { server, connect } = await serve();
    const store = await connect();
    const pending = rejection(store.get('k'));
    await store.close();
    expect((await pending).code).toBe('STORE_CLOSED');
    expect((await rejection(store.set('k', 'v'))).code).toBe('STORE_CLOSED');
    await expect.poll(() => server.numClients, { timeout: 30_000 }).toBe(0);
  });

  it('of a server can wait for its clients', async () => {
    const { server, connect } = await serve();
    const store = await connect();
    const closing = server.close({ waitMs: 10_000 });
    await store.set('k', 'v');
    await store.close();
    await closing;
  });

  it('comes in time where no store ever listens', async () => {
    const error = await rejection(connectStore({ port: 1, secret: SECRET, joinTimeoutMs: 150 }));
    expect(error.code).toBe('STORE_JOIN');
    expect(error.message).toMatch(/no store at ws:\/\/127\.0\.0\.1:1 \(ECONNREFUSED\), within 150/);
  });

  it('comes at once where something else listens', async () => {
    const server = createServer((_, response) => response.end('a web page'));
    await once(server.listen(0, '127.0.0.1'), 'listening');
    const { port } = server.address() as AddressInfo;
    const error = await rejection(connectStore({ port, secret: SECRET, joinTimeoutMs: 120_000 }));
    expect(error.message).toMatch(/no store at .* \(Unexpected server response: 200\)/);
    await once(server.close(), 'close');
  });
});
