// These tests check who gets into a job over ws, and how much those who don't may cost: origins,
// certificates, replays and limits.

import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import {
  connect as connectTls,
  createServer as createTlsServer,
  type Server as TlsServer,
} from 'node:tls';
import {
  type ConnectWsOptions,
  connectWs,
  type Refusal,
  type RendezvousServer,
  type ServeRendezvousOptions,
  serveRendezvous,
} from '@shardweave/collectives/ws';
import { generate } from 'selfsigned';
import { afterEach, describe, expect, it, vi } from 'vitest';
import { WebSocket } from 'ws';
import { JoinerHandshake, ListenerHandshake, runDigest } from '../src/sockets/handshake.js';
import { tlsKeyOf } from '../src/sockets/tls-psk.js';
import {
  parseRankMessage,
  parseRendezvousMessage,
} from '../src/transports/ws/join/parse-rendezvous-message.js';
import { parseLinkMessage } from '../src/transports/ws/link/parse-link-message.js';
import { beginFirst } from './support/first-rank.js';
import { untilInTime } from './support/in-time.js';
import { rawConnection } from './support/raw-rank.js';
import { SECRET } from './support/ws-harness.js';

const servers: RendezvousServer[] = [];

afterEach(() => {
  for (const server of servers.splice(0)) {
    server.close();
  }
});

/** Starts a rendezvous for two ranks, and the list of those it turned away. */
async function serve(options: Partial<ServeRendezvousOptions> = {}) {
  const refused: Refusal[] = [];
  const server = await serveRendezvous({
    worldSize: 2,
    secret: SECRET,
    onRefused: (refusal) => refused.push(refusal),
    ...options,
  });
  servers.push(server);
  return { port: server.port, refused };
}

/** Expects that both ranks join, exchange something and leave. */
async function expectJob(port: number, more: Partial<ConnectWsOptions> = {}): Promise<void> {
  const common = { worldSize: 2, port, secret: SECRET, rendezvous: 'elsewhere', ...more } as const;
  const groups = await Promise.all([0, 1].map((rank) => connectWs({ ...common, rank })));
  await Promise.all(groups.map((group) => group.barrier()));
  await Promise.all(groups.map((group) => group.close()));
}

async function closed(socket: Socket): Promise<void> {
  socket.on('error', () => {}).resume();
  if (!socket.closed) {
    await once(socket, 'close');
  }
}

describe('origins', () => {
  it('are refused unless allowed, with a reason in the log', async () => {
    const { port, refused } = await serve({ allowedOrigins: ['https://ours.example'] });
    const evil = new WebSocket(`ws://127.0.0.1:${port}`, { origin: 'https://evil.example' });
    const [error] = (await once(evil, 'error')) as [Error];
    expect(error.message).toMatch(/401/);
    expect(refused.map(({ reason }) => reason)).toEqual([
      'origin https://evil.example is not allowed',
    ]);
    const ours = new WebSocket(`ws://127.0.0.1:${port}`, { origin: 'https://ours.example' });
    const [greeting] = (await once(ours, 'message')) as [Buffer];
    expect(greeting.length).toBe(36); // It still has to prove itself.
    ours.terminate();
    await expectJob(port);
  });
});

/** Makes a certificate for all ranks, which each of them trusts. */
async function certified() {
  const { private: key, cert } = await generate([{ name: 'commonName', value: 'shardweave' }], {
    extensions: [{ name: 'subjectAltName', altNames: [{ type: 2, value: 'shardweave' }] }],
  });
  return { key, cert, ca: cert, servername: 'shardweave' };
}

describe('wss', () => {
  it('joins ranks that trust the certificate, and no others', async () => {
    const tls = await certified();
    const { key, cert } = tls;
    const { port, refused } = await serve({ tls });
    const common = { rank: 1, worldSize: 2, port, secret: SECRET } as const;
    await expect(connectWs({ ...common, tls: { key, cert } })).rejects.toThrow(
      /no rendezvous .*SELF_SIGNED/,
    );
    await expect(
      connectWs({ ...common, tls: { ...tls, servername: 'somebody else' } }),
    ).rejects.toThrow(/ERR_TLS_CERT_ALTNAME_INVALID/);
    await expect(connectWs({ ...common, joinTimeoutMs: 300 })).rejects.toThrow(/no rendezvous/);
    expect(refused.length).toBeGreaterThanOrEqual(1);
    await expectJob(port, { tls });
  });

  it('is TLS 1.3 to who dials and to who listens', async () => {
    const tls = await certified();
    const { port, refused } = await serve({ tls });
    const { ca, servername } = tls;
    const older = connectTls({ host: '127.0.0.1', port, ca, servername, maxVersion: 'TLSv1.2' });
    expect(await once(older, 'error')).toMatchObject([
      { code: expect.stringMatching(/PROTOCOL_VERSION/) },
    ]);
    expect(refused).toMatchObject([{ reason: expect.stringMatching(/UNSUPPORTED_PROTOCOL/) }]);
    const server = createTlsServer({ ...tls, maxVersion: 'TLSv1.2' }).listen(0, '127.0.0.1');
    await once(server, 'listening');
    const at = (server.address() as AddressInfo).port;
    const joined = connectWs({ rank: 1, worldSize: 2, port: at, secret: SECRET, tls });
    await expect(joined).rejects.toThrow(/no rendezvous .*EPROTO/);
    server.close();
  });

  describe('lets nobody pass on proofs who has the certificate', () => {
    const relays: TlsServer[] = [];

    afterEach(() => {
      for (const relay of relays.splice(0)) {
        relay.close();
      }
    });

    /** Begins rank 0, and starts a relay to each of its ports. */
    async function beginBehindRelays() {
      const tls = await certified();
      const reasons: string[] = [];
      const onRefused = ({ reason }: Refusal) => reasons.push(reason);
      const { port, joined } = await beginFirst({ tls, onRefused });
      const relayTo = async (onwardPort: number) => {
        const { ca, servername } = tls;
        const relay = createTlsServer(tls, (socket) => {
          const onward = connectTls({ host: '127.0.0.1', port: onwardPort, ca, servername });
          socket.on('error', () => {}).pipe(onward);
          onward.on('error', () => {}).pipe(socket);
        }).listen(0, '127.0.0.1');
        relays.push(relay);
        await once(relay, 'listening');
        return { host: '127.0.0.1', port: (relay.address() as AddressInfo).port };
      };
      const common = { rank: 1, worldSize: 2, port, secret: SECRET, tls } as const;
      return { common, joined, reasons, relayTo };
    }

    it('a proof passed on to the rendezvous is refused', async () => {
      const { common, joined, reasons, relayTo } = await beginBehindRelays();
      const route: ConnectWsOptions['route'] = (_, { port }) => relayTo(port);
      const relayed = connectWs({ ...common, route });
      await expect(relayed).rejects.toThrow('refused by the rendezvous: wrong secret');
      expect(reasons).toEqual(['wrong secret']);
      const second = await connectWs(common);
      await Promise.all([(await joined).close(), second.close()]);
    });

    it('a proof passed on to a rank that tells its signs of life is refused', async () => {
      const { common, joined, reasons, relayTo } = await beginBehindRelays();
      const route: ConnectWsOptions['route'] = (_, to) =>
        to.port === common.port ? to : relayTo(to.port);
      const second = await connectWs({ ...common, listen: false, route });
      expect(reasons).toEqual(['wrong secret']);
      await Promise.all([(await joined).close(), second.close()]);
    });
  });

  it('needs a key where a rank listens', async () => {
    const options = { rank: 1, worldSize: 2, port: 5000, secret: SECRET, tls: { ca: 'x' } };
    await expect(connectWs(options)).rejects.toMatchObject({ code: 'JOIN' });
  });
});

describe('a proof', () => {
  it('is worth nothing when it is replayed', async () => {
    const { port, refused } = await serve();
    const heard: Buffer[][] = [];
    const proxy = createServer((socket) => {
      const said: Buffer[] = [];
      heard.push(said);
      const onward = connect(port, '127.0.0.1');
      socket.on('data', (data: Buffer) => said.push(data));
      socket.pipe(onward).pipe(socket);
      socket.on('error', () => {});
      onward.on('error', () => {});
    }).listen(0, '127.0.0.1');
    await once(proxy, 'listening');
    const proxied = { host: '127.0.0.1', port: (proxy.address() as AddressInfo).port };
    await expectJob(port, { route: (target, to) => (target === 'rendezvous' ? proxied : to) });
    proxy.close();
    expect(refused).toEqual([]);
    expect(heard).toHaveLength(2);
    for (const said of heard) {
      const [request, proof] = said; // The listener asks for the proof after the request.
      const again = connect(port, '127.0.0.1');
      again.write(request!);
      await once(again, 'data');
      again.write(proof!);
      await closed(again);
    }
    expect(refused.map(({ reason }) => reason)).toEqual(['wrong secret', 'wrong secret']);
  });
});

describe('a proven rank', () => {
  it('a rank that sends what nobody asks for is lost, and all are told of the bound', async () => {
    const { port } = await serve();
    const place = { worldSize: 2, port, secret: SECRET, rendezvous: 'elsewhere' } as const;
    const [reader, sender] = await Promise.all([
      connectWs({ ...place, rank: 0, maxUnclaimedBytes: 4 * 2 ** 20 }),
      connectWs({ ...place, rank: 1 }),
    ]);
    const wanted = reader.recv(new Uint8Array(1), { from: 1, channel: 1 });
    const sends = Array.from({ length: 5 }, () => sender.send(new Uint8Array(2 ** 20), { to: 0 }));
    await expect(wanted).rejects.toMatchObject({ code: 'PEER_LOST', originRank: 1 });
    await expect(wanted).rejects.toThrow(/at most 4194304 are held: .* raise maxUnclaimedBytes/);
    await Promise.allSettled(sends);
    const later = sender.barrier();
    await expect(later).rejects.toMatchObject({ code: 'PEER_LOST', originRank: 1 });
    await expect(later).rejects.toThrow(/raise maxUnclaimedBytes/);
  });
});

const OF_THE_DOCUMENT = 'of this very test';

describe('both proofs', () => {
  it.each([
    [
      'without TLS',
      undefined,
      '8e79da84e974405a3462f89b3e5e7c496796629fb09a8515b5c22ba9d87cb8ba',
      'e9bc24ec97a9daa769d5099a2e62c2bdaecd2b427742e780ef83f970707e99b7',
    ],
    [
      'over TLS',
      Uint8Array.from({ length: 32 }, (_, i) => 64 + i),
      'bb7583606149bcb9ba60f40ef2f1814f827751dd12f373767edbc695c268449d',
      '5b570bb02fb360cfcca4ccf78887eb68781f15fe482551dc680d05f4fdf69a65',
    ],
  ])(
    'proofs %s are those of docs/wire-format.md, which openssl has made',
    (_, session, ofJoiner, ofListener) => {
      const nonces = [0, 32].map((first) => Uint8Array.from({ length: 32 }, (_, i) => first + i));
      const random = vi.spyOn(crypto, 'getRandomValues').mockImplementation((bytes) => {
        (bytes as Uint8Array).set(nonces.shift()!);
        return bytes;
      });
      const run = runDigest('none');
      const hello = { role: 'link', rank: 1, target: 0, worldSize: 2, attempt: 0, run } as const;
      const listener = new ListenerHandshake(OF_THE_DOCUMENT, session);
      const said = new JoinerHandshake(OF_THE_DOCUMENT, hello, session).answer(listener.greeting);
      random.mockRestore();
      const judged = listener.judge(said) as { readonly proof: Uint8Array };
      const proofs = [said.subarray(72), judged.proof].map((one) =>
        Buffer.from(one).toString('hex'),
      );
      expect(proofs).toEqual([ofJoiner, ofListener]);
    },
  );

  it('have no byte too many', () => {
    const run = runDigest('none');
    const hello = { role: 'link', rank: 1, target: 0, worldSize: 2, attempt: 0, run } as const;
    const listener = new ListenerHandshake(SECRET, undefined);
    const joiner = new JoinerHandshake(SECRET, hello, undefined);
    const judged = listener.judge(joiner.answer(listener.greeting));
    const { proof } = judged as { readonly proof: Uint8Array };
    expect(() => joiner.check(Uint8Array.of(...proof, 0))).toThrow(/does not know the secret/);
    joiner.check(proof);
  });

  it('are worth nothing in another TLS session, or outside of one', () => {
    const hello = {
      role: 'link',
      rank: 1,
      target: 0,
      worldSize: 2,
      attempt: 0,
      run: runDigest('none'),
    } as const;
    const sessions = [undefined, new Uint8Array(32), new Uint8Array(32).fill(1)];
    for (const [i, at] of sessions.entries()) {
      for (const [j, of] of sessions.entries()) {
        const listener = new ListenerHandshake(SECRET, at);
        const judged = listener.judge(
          new JoinerHandshake(SECRET, hello, of).answer(listener.greeting),
        );
        expect('refusal' in judged ? judged.refusal : 'let in').toBe(
          i === j ? 'let in' : 'wrong secret',
        );
      }
    }
  });

  it("proofs with a tail are none: the listener's is compared in whole", () => {
    const run = runDigest('none');
    const hello = { role: 'link', rank: 1, target: 0, worldSize: 2, attempt: 0, run } as const;
    const listener = new ListenerHandshake(SECRET);
    const joiner = new JoinerHandshake(SECRET, hello);
    const { proof } = listener.judge(joiner.answer(listener.greeting)) as { proof: Uint8Array };
    const longer = Uint8Array.from([...proof, 0]);
    for (const wrong of [longer, proof.subarray(0, -1), new Uint8Array(0)]) {
      expect(() => joiner.check(wrong)).toThrow('the listener does not know the secret');
    }
    joiner.check(proof);
  });

  it('the key of TLS is the key of docs/wire-format.md, which openssl has made', () => {
    expect(tlsKeyOf(OF_THE_DOCUMENT).toString('hex')).toBe(
      'd771346c10163af7703ab3208d837763a09b0292a69aa2adac2f5d90e381dabc',
    );
  });
});

describe('a run', () => {
  it('takes no rank of another one, though that knows the secret', async () => {
    const { port, refused } = await serve({ runId: 'job-a' });
    const others = { rank: 1, worldSize: 2, port, secret: SECRET, joinTimeoutMs: 5000 } as const;
    for (const runId of ['job-b', undefined]) {
      const other = connectWs({ ...others, ...(runId && { runId }) });
      await expect(other).rejects.toThrow(/refused by the rendezvous: this is another run/);
    }
    expect(refused).toHaveLength(2);
    await expectJob(port, { runId: 'job-a' });
  });

  it('is covered by the proof: a replaced one counts as a wrong secret', () => {
    const hello = {
      role: 'link',
      rank: 1,
      target: 0,
      worldSize: 2,
      attempt: 0,
      run: runDigest('job-a'),
    } as const;
    const listener = new ListenerHandshake(SECRET);
    const said = new JoinerHandshake(SECRET, hello).answer(listener.greeting);
    expect(listener.judge(said)).toMatchObject({ hello });
    // These are bytes of the fields, the run, the nonce, and both ends of the proof itself.
    for (const at of [4, 12, 16, 20, 24, 39, 40, 72, 103]) {
      const changed = said.slice();
      changed[at]! ^= 1;
      expect(listener.judge(changed)).toEqual({ refusal: 'wrong secret' });
    }
  });
});

describe('a ping', () => {
  it.each([
    ['a process', undefined],
    ['a page of an allowed origin', 'https://ours.example'],
  ])('a ping of %s is answered behind the proof, and not before', async (_, origin) => {
    const { port } = await serve({ allowedOrigins: ['https://ours.example'] });
    const stranger = new WebSocket(`ws://127.0.0.1:${port}`, { ...(origin && { origin }) });
    let numPongs = 0;
    stranger.on('pong', () => {
      numPongs++;
    });
    await once(stranger, 'message'); // The message is the greeting.
    stranger.ping();
    stranger.send(new Uint8Array(100)); // This is read after the ping, and refused.
    const [code] = (await once(stranger, 'close')) as [number];
    expect([code, numPongs]).toEqual([4401, 0]);
    const raw = { port, secret: SECRET, rank: 1, worldSize: 2, ...(origin && { origin }) };
    const rank = await rawConnection('rendezvous', raw);
    const answered = once(rank, 'pong');
    rank.ping();
    await answered;
    rank.terminate();
  });
});

describe('words of a proven rank', () => {
  it('have no control characters where people read them', () => {
    const failure = {
      kind: 'aborted',
      origin: 1,
      reason: `\u001b[2Jgone\u202e\r\nwell${'l'.repeat(2000)}`,
    };
    expect(parseLinkMessage(JSON.stringify({ type: 'failure', failure }), 2)).toEqual({
      type: 'failure',
      failure: { ...failure, reason: `?[2Jgone?? well${'l'.repeat(985)}` },
    });
  });
});

describe('a text of a proven rank', () => {
  it('is not parsed above 64 KiB, however it is nested', () => {
    const long = `${JSON.stringify({ type: 'alive' })}${' '.repeat(2 ** 16)}`;
    expect(() => parseLinkMessage(long, 2)).toThrow('a text of 65552 characters, over 65536');
    expect(() => parseRankMessage(long)).toThrow(/over 65536/);
    expect(() => parseLinkMessage('['.repeat(2 ** 16), 2)).toThrow('text that is no JSON');
  });

  it('may be a table of addresses as long as the world needs', () => {
    const address = { host: 'x'.repeat(253), port: 65_535, beats: false };
    const addresses = Array.from({ length: 1000 }, () => address);
    const table = JSON.stringify({ type: 'table', addresses });
    expect(parseRendezvousMessage(table, 1000)).toEqual({ type: 'table', addresses });
    expect(() => parseRendezvousMessage(table, 100)).toThrow(/over \d+$/);
  });

  it('a text of an unknown type is named on one line', () => {
    const parse = () => parseLinkMessage(JSON.stringify({ type: 'a\u202eb\u009b' }), 2);
    expect(parse).toThrow('unknown message type "a?b?"');
  });
});

describe('limits', () => {
  it('drop strangers over their number, and those that prove nothing in time', async () => {
    await untilInTime(400, async (proofMs) => {
      const { port, refused } = await serve({ limits: { maxStrangers: 8, proofMs } });
      const silent = Array.from({ length: 12 }, () => connect(port, '127.0.0.1'));
      await Promise.all(silent.map(closed));
      const reasons = refused.map(({ reason }) => reason);
      const numLate = reasons.filter((reason) => reason === `no proof within ${proofMs} ms`).length;
      const numAged = reasons.filter(
        (reason) => reason === 'the oldest of 8 that had proved nothing',
      ).length;
      expect(numLate + numAged).toBe(12);
      await expectJob(port);
      return numAged === 4; // All came before one had been sent away.
    });
  });

  it('drop connections over the rate, from which ranks that come then recover', async () => {
    const { port, refused } = await serve({ limits: { maxJoinsPerSecond: 20 } });
    const numRefused = () =>
      refused.filter(({ reason }) => reason === 'too many connections a second').length;
    // The loop opens as many connections as it takes, since a busy machine may let them come
    // slowly.
    const flood: Socket[] = [];
    let job: Promise<void> | undefined;
    do {
      const batch = Array.from({ length: 40 }, () => connect(port, '127.0.0.1'));
      flood.push(...batch);
      job ??= expectJob(port);
      await Promise.all([job, ...batch.map((socket) => once(socket, 'connect'))]);
    } while (numRefused() < 10);
    for (const socket of flood) {
      socket.destroy();
    }
  });

  it.each([
    ['a process', undefined],
    ['a page of an allowed origin', 'https://ours.example'],
  ])('cut off %s that says more than 1 KiB without a proof', async (_, origin) => {
    const { port, refused } = await serve({ allowedOrigins: ['https://ours.example'] });
    const say = async (numBytes: number) => {
      const socket = new WebSocket(`ws://127.0.0.1:${port}`, { ...(origin && { origin }) });
      socket.on('error', () => {});
      await once(socket, 'message'); // The message is the greeting.
      socket.send(new Uint8Array(numBytes));
      const [code] = (await once(socket, 'close')) as [number];
      return code;
    };
    expect(await say(1000)).toBe(4401); // This is judged, and refused with the reason.
    expect(await say(1025)).toBe(1006);
    expect(refused.map(({ reason }) => reason)).toEqual([
      'not a rank of this program and version',
      expect.stringMatching(/more than 1024 bytes without a proof|a message of 1025 bytes/),
    ]);
    await expectJob(port);
  });

  it('answer what is no WebSocket', async () => {
    const { port, refused } = await serve();
    const response = await fetch(`http://127.0.0.1:${port}/`);
    expect(response.status).toBe(426);
    expect(refused.map(({ reason }) => reason)).toEqual(['a request that is no WebSocket']);
  });
});
