// An elastic job over WebSockets in one process: members come, leave, lose their coordinator and
// are refused. elastic-processes.test.ts kills and stops real ones.

import { once } from 'node:events';
import {
  type Departure,
  type Epoch,
  EpochOverError,
  type JoinElasticOptions,
  joinElastic,
  type Member,
  type ServeElasticOptions,
  serveElastic,
} from '@shardweave/collectives/elastic';
import { ProxiedLinks, TcpProxy } from '@shardweave/collectives/testing-node';
import { connectWs } from '@shardweave/collectives/ws';
import { afterEach, describe, expect, it } from 'vitest';
import { begin, elasticSuite, sums, untilOver } from './support/elastic-suite.js';
import { freePort } from './support/free-port.js';
import { rawConnection } from './support/raw-rank.js';
import { SECRET } from './support/ws-harness.js';

const toEnd: (() => Promise<unknown>)[] = [];

afterEach(async () => {
  for (const end of toEnd.splice(0).reverse()) {
    await end();
  }
});

async function serve(options: Partial<ServeElasticOptions> = {}) {
  const server = await serveElastic({
    min: 1,
    max: 4,
    secret: SECRET,
    settleMs: 100,
    ...options,
  });
  toEnd.push(() => server.close());
  return server;
}

/** Joins without heartbeat workers, which take most of the time of such a test. */
async function join(port: number, options: Partial<JoinElasticOptions> = {}): Promise<Member> {
  const member = await joinElastic({
    rendezvous: { host: '127.0.0.1', port },
    max: 4,
    secret: SECRET,
    heartbeat: 'link',
    ...options,
  });
  toEnd.push(() => member.leave());
  return member;
}

describe('an elastic job over sockets', () => {
  elasticSuite(async (range) => {
    const { port } = await serve(range);
    return { join: () => join(port, { max: range.max }) };
  });

  it('tells members what it is about, whatever its size', async () => {
    const { port } = await serve({ about: 'lr 0.1' });
    expect((await join(port, { max: undefined })).about).toBe('lr 0.1');
  });
});

describe('members that do not listen', () => {
  it('are joined to each other by the coordinator, epoch by epoch, and missed when they are gone', async () => {
    const server = await serve();
    const { port } = server;
    const listens = await join(port);
    const silent = [await join(port, { listen: false }), await join(port, { listen: false })];
    const first = await begin([listens, ...silent]);
    expect(await sums(first)).toEqual([6, 6, 6]);
    const late = { port, secret: SECRET, rank: 1, worldSize: 3 };
    await expect(rawConnection('relay', late)).rejects.toThrow('closed, 4401');

    const [, gone, staying] = first as [Epoch, Epoch, Epoch];
    const over = Promise.allSettled([first[0]!, staying].map(untilOver));
    await silent[0]!.leave();
    for (const outcome of await over) {
      expect(outcome).toMatchObject({ reason: { code: 'EPOCH', originRank: gone.group.rank } });
    }
    const newcomer = await join(port, { listen: false });
    const entering = newcomer.reform({ step: 0 });
    const next = await begin([listens, silent[1]!], 3);
    const third = next[0]!.members.length === 3 ? next : await begin([listens, silent[1]!], 3);
    expect(await sums([...third, await entering])).toEqual([6, 6, 6]);
  });
});

describe('paths', () => {
  it('a path that is cut between two who both reach the coordinator leaves out the higher id', async () => {
    const links = new ProxiedLinks();
    const gone: Departure[] = [];
    const { port } = await serve({ onChange: (change) => gone.push(...change.gone) });
    const fast = { heartbeatMs: 100, silenceMs: 500, linkSilenceMs: 500 };
    const members: Member[] = [];
    for (let own = 0; own < 3; own++) {
      const route: JoinElasticOptions['route'] = (target, address) =>
        target === 'rendezvous' ? address : links.route(own, target, address);
      members.push(await join(port, { ...fast, route }));
    }
    const epochs = await begin(members);
    expect(members.map(({ id }) => id)).toEqual([0, 1, 2]);
    for (const proxy of await links.of(0, 1)) {
      proxy.stall();
    }
    const [zero, one, two] = await Promise.allSettled(
      members.map(async (member, rank) => {
        await expect(untilOver(epochs[rank]!)).rejects.toThrow(EpochOverError);
        return member.reform({ step: 4 });
      }),
    );
    expect(one).toMatchObject({ status: 'rejected', reason: { kind: 'fenced' } });
    expect(String((one as PromiseRejectedResult).reason)).toContain('no path to some of');
    for (const outcome of [zero, two]) {
      const { value } = outcome as PromiseFulfilledResult<Epoch>;
      expect(value.members.map(({ id }) => id)).toEqual([0, 2]);
      expect(value.left).toEqual([1]);
    }
    expect(gone).toMatchObject([{ id: 1, how: 'fenced' }]);
    await links.close();
  });

  it('a connection to the coordinator that breaks is made again, and changes nothing', async () => {
    const { port } = await serve({ suspectMs: 10_000 });
    const proxy = await TcpProxy.listen({ target: { host: '127.0.0.1', port } });
    const route: JoinElasticOptions['route'] = (target, address) =>
      target === 'rendezvous' ? proxy.address : address;
    const members = [await join(port, { route }), await join(port)];
    const epochs = await begin(members);
    proxy.cut();
    const next = await begin(members, 3);
    expect(next[0]).toMatchObject({ number: 2, joined: [], left: [] });
    proxy.cut();
    const again = members[1]!.reform({ step: 4 });
    await expect(untilOver(next[0]!)).rejects.toThrow(EpochOverError);
    expect((await Promise.all([members[0]!.reform({ step: 4 }), again]))[0]!.number).toBe(3);
    expect(epochs[0]!.number).toBe(1);
    await Promise.all(members.map((member) => member.leave()));
    await proxy.close();
  });
});

describe('who is refused', () => {
  it.each([
    ['another run', { runId: 'another' }, /this is another run/],
    ['another max', { max: 3 }, /max is 4 here, not 3/],
    ['another secret', { secret: 'not made by the launcher' }, /wrong secret/],
    [
      'a place where nobody listens',
      { rendezvous: { host: '127.0.0.1', port: 1 } },
      /ECONNREFUSED/,
    ],
  ])('%s', async (_, options, message) => {
    const { port } = await serve();
    await expect(join(port, { joinTimeoutMs: 500, ...options })).rejects.toThrow(message);
  });

  it('somebody of an epoch that is over', async () => {
    const refused: string[] = [];
    const { port } = await serve();
    const listen = { port: await freePort() };
    const member = await join(port, { listen, onRefused: ({ reason }) => refused.push(reason) });
    await begin([member]);
    const old = { port: listen.port, secret: SECRET, rank: 1, worldSize: 2 };
    await expect(rawConnection('link', old)).rejects.toThrow('closed, 4401');
    expect(refused).toEqual(['epoch 0 is over, this is epoch 1']);
  });

  it('a member that says what no member says, which harms nobody', async () => {
    const { port } = await serve();
    const member = await join(port);
    const epochs = await begin([member]);
    const place = { port, secret: SECRET, rank: 0xffffffff, worldSize: 4 };
    const stranger = await rawConnection('rendezvous', place);
    const closed = once(stranger, 'close');
    stranger.send('{"type":"what"}');
    const [code, reason] = await closed;
    expect([code, String(reason)]).toEqual([4401, 'unknown message type "what"']);
    expect(await sums(epochs)).toEqual([1]);
    expect(member.isChangeDue).toBe(false);
  });

  it('a rank of a fixed job', async () => {
    const { port } = await serve();
    const rank = connectWs({ rank: 1, worldSize: 4, port, secret: SECRET, joinTimeoutMs: 500 });
    await expect(rank).rejects.toThrow(/this job is elastic: join it by joinElastic/);
  });

  it.each([
    [{ min: 0 }, /min 0 and max 4/],
    [{ min: 5 }, /min 5 and max 4/],
    [{ max: 5000 }, /max 5000/],
    [{ secret: 'short' }, /at least 16 characters/],
    [{ about: 'x'.repeat(40_000) }, /about has at most 32768 bytes, got 40000/],
  ])('a coordinator with %j', async (options, message) => {
    await expect(serve(options)).rejects.toThrow(message);
  });
});

it('a job that its coordinator ends is over for all, with the reason, and is watched to its end', async () => {
  const phases: string[] = [];
  const server = await serve({ onChange: ({ phase, epoch }) => phases.push(`${phase} ${epoch}`) });
  const member = await join(server.port);
  await begin([member]);
  const changes = member.isChangeDue;
  await server.close('everything is done');
  expect(changes).toBe(false);
  await expect(member.reform({ step: 1 })).rejects.toMatchObject({
    code: 'MEMBERSHIP',
    kind: 'ended',
    reason: 'everything is done',
  });
  expect(member.isChangeDue).toBe(true);
  expect(phases).toEqual(['gathering 0', 'forming 1', 'running 1', 'ended 1']);
});
