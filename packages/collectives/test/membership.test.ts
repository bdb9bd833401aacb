// The coordinator of an elastic job, and the machines of its members, without sockets and without a
// clock: what they do by rule. membership-schedules.test.ts has them do it at random.

import { describe, expect, it } from 'vitest';
import type { CoordinatorOptions } from '../src/membership/coordinator-options.js';
import { MemberCore } from '../src/membership/member-core.js';
import type { LastEpoch, Said } from '../src/membership/messages.js';
import { MembershipScene } from './support/membership-scene.js';

const half = (id: number) => id < 2;
const acrossHalves = (a: number, b: number) => half(a) !== half(b);

describe('a job of a fixed size', () => {
  it('begins when all have come, and waits for another one when one is lost', () => {
    const scene = new MembershipScene({ min: 3, max: 3, shortMs: 5000 });
    scene.come(0, 0);
    scene.pass(4000);
    expect(scene.heard(0)).toEqual(['welcome']);
    scene.come(0, 0, 0);
    scene.link(1, [0, 1, 2]);
    expect(scene.heard(2)).toEqual(['welcome', 'table', 'formed']);
    scene.say(0, { type: 'lost', epoch: 1, members: [2] });
    scene.hangUp(2);
    scene.say(0, { type: 'edge', hasState: true, epoch: 1, step: 7, note: '' });
    scene.say(1, { type: 'edge', hasState: true, epoch: 1, step: 6, note: '' });
    scene.pass(4000);
    expect(scene.coordinator.status.phase).toBe('gathering');
    scene.say(9, { type: 'here', address: null, told: 0 });
    scene.say(9, { type: 'edge', hasState: false, epoch: 0, step: 0, note: '' });
    expect(scene.table(9)).toMatchObject({ epoch: 2, before: [0, 1, 2], source: 0 });
    expect(scene.table(9).members.map(({ id, step }) => [id, step])).toEqual([
      [0, 7],
      [1, 6],
      [3, 0],
    ]);
  });

  it('ends for all, with a reason, when nobody comes', () => {
    const scene = new MembershipScene({ min: 2, max: 2, shortMs: 5000 });
    scene.come(0);
    scene.pass(5000);
    expect(scene.heard(0)).toEqual(['welcome', 'ended']);
    expect(scene.coordinator.status.phase).toBe('ended');
  });
});

describe('an epoch that is over', () => {
  /** Four at work in epoch 1. */
  function atWork(options: Partial<CoordinatorOptions> = {}): MembershipScene {
    const scene = new MembershipScene({ min: 1, max: 4, ...options });
    scene.come(0, 0, 0, 0);
    scene.pass(1000);
    scene.link(1, [0, 1, 2, 3]);
    [0, 1, 2, 3].forEach((id) => void scene.heard(id));
    return scene;
  }
  const stop = (scene: MembershipScene, ids: readonly number[], epoch = 1) => {
    for (const id of ids) {
      scene.say(id, { type: 'edge', hasState: true, epoch, step: 5, note: '' });
    }
  };

  it('is told to all at once, by the word of one', () => {
    const scene = atWork();
    scene.say(2, { type: 'lost', epoch: 1, members: [3] });
    expect([0, 1, 2, 3].map((id) => scene.heard(id))).toEqual(Array(4).fill(['over']));
  });

  it.each([
    ['is lost to others', 1000, [3]],
    ['computes', 600_000, []],
  ])('waits for a member that %s for %i ms', (_, ms, lost) => {
    const scene = atWork();
    scene.say(2, { type: 'lost', epoch: 1, members: lost });
    stop(scene, [0, 1, 2]);
    scene.pass(ms - 1);
    expect(scene.coordinator.status.phase).toBe('gathering');
    scene.pass(1);
    expect(scene.heard(3)).toEqual(['over', 'fenced']);
    expect(scene.table(0)).toMatchObject({ epoch: 2, before: [0, 1, 2, 3] });
    scene.link(2, [0, 1, 2]);
    stop(scene, [0, 1, 2], 2);
    expect(scene.table(0)).toMatchObject({ epoch: 3, before: [0, 1, 2] });
  });

  it('waits a second for who shows no sign of life, and longer for who shows one again', () => {
    const scene = atWork();
    scene.silence(3, true);
    scene.silence(2, true);
    scene.pass(5000);
    expect(scene.coordinator.status.phase).toBe('running'); // they judge one another
    scene.hangUp(1);
    scene.pass(1000);
    stop(scene, [0]);
    scene.silence(2, false);
    scene.pass(1000);
    expect([scene.heard(3), scene.heard(2)]).toEqual([['over', 'fenced'], ['over']]);
    expect(scene.coordinator.status.phase).toBe('gathering');
    stop(scene, [2]);
    expect(scene.table(0).members.map(({ id }) => id)).toEqual([0, 2]);
  });

  it('goes on without who left, or whose connection has ended for a second', () => {
    const scene = atWork();
    scene.say(3, { type: 'leave' });
    expect(scene.lost(0)).toEqual([]); // it is not dead
    stop(scene, [0, 1, 2]);
    expect(scene.table(0).members.map(({ id }) => id)).toEqual([0, 1, 2]);
    scene.link(2, [0, 1, 2]);
    scene.hangUp(1);
    scene.pass(999);
    expect(scene.coordinator.status.phase).toBe('running');
    scene.pass(1);
    expect(scene.coordinator.status.phase).toBe('gathering');
    expect(scene.lost(0)).toEqual([1]);
  });

  it('is told again to who has missed it, as is each word after that', () => {
    const scene = atWork({ max: 5 });
    const comesAgain = (connection: number, epoch: number, isRunning: boolean) => {
      const last = { ...lastOf(3, epoch, [0, 1, 2, 3]), isRunning };
      scene.say(connection, { type: 'here', address: null, told: 0, last });
      return scene.heard(connection);
    };
    const edge = { type: 'edge', hasState: true, epoch: 1, step: 5, note: '' } as const;
    scene.hangUp(3);
    stop(scene, [0, 1, 2]);
    expect(comesAgain(13, 1, true)).toEqual(['welcome', 'over']);
    scene.say(13, edge);
    scene.hangUp(13);
    expect(comesAgain(23, 1, false)).toEqual(['welcome', 'table']);
    scene.link(2, [0, 1, 2, 3]);
    scene.say(23, { type: 'linked', epoch: 2, peers: [0, 1, 2] });
    scene.hangUp(23);
    expect(comesAgain(33, 2, false)).toEqual(['welcome', 'formed']);
    scene.say(9, { type: 'here', address: null, told: 0 });
    scene.say(9, { ...edge, epoch: 0, hasState: false });
    scene.pass(1000);
    expect(scene.heard(33)).toEqual(['due']);
    scene.hangUp(33);
    expect(comesAgain(43, 2, true)).toEqual(['welcome', 'due']);
    expect(comesAgain(44, 2, false)).toEqual(['welcome', 'formed', 'due']);
    stop(scene, [0, 1, 2], 2);
    scene.hangUp(44);
    comesAgain(53, 2, false); // it had never heard that epoch 2 began
    scene.say(53, edge);
    expect(scene.coordinator.status).toMatchObject({ phase: 'forming', epoch: 3 });
  });

  it('does not end by the word of one that is in an earlier epoch', () => {
    const scene = atWork();
    stop(scene, [0, 1, 2, 3]);
    scene.link(2, [0, 1, 2, 3]);
    scene.say(2, { type: 'lost', epoch: 1, members: [3] });
    expect(scene.coordinator.status).toMatchObject({ phase: 'running', epoch: 2 });
  });

  it('is none where a member only repeats the edge before it', () => {
    const scene = atWork();
    stop(scene, [2], 0);
    expect(scene.coordinator.status.phase).toBe('running');
    stop(scene, [0, 1, 3]);
    stop(scene, [2], 0); // it will hear that it is to begin, and then that it is over
    expect(scene.coordinator.status.phase).toBe('gathering');
    stop(scene, [2]);
    expect(scene.coordinator.status.phase).toBe('forming');
  });
});

describe('the last one with the state', () => {
  /** Epoch 2 forms of member 0 and newcomers 4 and 5, to whom it has yet to say anything. */
  function forming(): MembershipScene {
    const scene = new MembershipScene({ min: 1, max: 4, linkMs: 5000, graceMs: 60_000 });
    scene.come(0);
    scene.pass(1000);
    scene.link(1, [0]);
    for (const connection of [4, 5]) {
      scene.say(connection, { type: 'here', address: null, told: 0 });
      const edge = { step: 0, note: '', epoch: 0, hasState: false };
      scene.say(connection, { type: 'edge', ...edge });
    }
    scene.say(0, { type: 'edge', hasState: true, epoch: 1, step: 7, note: '' });
    scene.say(4, { type: 'linked', epoch: 2, peers: [2] });
    scene.say(5, { type: 'linked', epoch: 2, peers: [1] });
    return scene;
  }

  it('is waited for where it links late, and is given up like others where it never does', () => {
    const late = forming();
    late.pass(59_999);
    expect(late.coordinator.status).toMatchObject({ phase: 'forming', members: [0, 1, 2] });
    late.say(0, { type: 'linked', epoch: 2, peers: [1, 2] });
    expect(late.coordinator.status.phase).toBe('forming'); // each end of a link tells of it
    late.say(4, { type: 'linked', epoch: 2, peers: [0, 2] });
    late.say(5, { type: 'linked', epoch: 2, peers: [0, 1] });
    expect(late.coordinator.status).toMatchObject({ phase: 'running', epoch: 2 });
    const never = forming();
    never.pass(60_000);
    expect(never.heard(0).slice(-1)).toEqual(['fenced']);
    expect(never.coordinator.status.phase).toBe('ended');
  });

  it.each([
    ['whose connection has ended', 11_999],
    ['that shows no sign of life', 29_999],
  ])('%s is waited for until it would have come back', (how, ms) => {
    const gone = how.includes('connection') ? [1, 0] : [1];
    const scene = new MembershipScene({ min: 1, max: 2 });
    scene.come(0, 0);
    scene.link(1, [0, 1]);
    scene.silence(0, gone.length === 1);
    for (const connection of gone) {
      scene.hangUp(connection);
    }
    scene.pass(1000);
    scene.come(0, 0, 0); // a newcomer has no state
    scene.pass(ms - 1000);
    expect(scene.coordinator.status.phase).toBe('gathering');
    scene.say(9, { type: 'here', address: null, told: 0, last: lastOf(0, 1, [0, 1]) });
    scene.say(9, { type: 'edge', hasState: true, epoch: 1, step: 7, note: '' });
    expect(scene.coordinator.status).toMatchObject({ phase: 'forming', members: [0, 2] });
  });
});

describe('a member', () => {
  /** One that has come as member 0 and stopped at step 3, and what it says from then on. */
  function forming() {
    const said: Said<null>[] = [];
    const stopped: (readonly number[])[] = [];
    const none = () => {};
    const core = new MemberCore<null>(null, {
      say: (message) => said.push(message),
      stop: (_, lost) => stopped.push(lost),
      link: none,
      start: none,
      fail: none,
    });
    core.connected();
    core.hear({ type: 'welcome', id: 0, epoch: 0 });
    core.reform({ step: 3, note: 'n' });
    const members = [0, 1, 2].map((id) => ({ id, address: null, step: 3, note: 'n' }));
    core.hear({ type: 'table', epoch: 1, members, before: [], source: 0 });
    said.length = 0;
    return { core, said, stopped };
  }

  it('tells again where it has stopped and to whom it has links, over another connection', () => {
    const { core, said } = forming();
    core.link(1, [2]);
    said.length = 0;
    core.connected();
    core.hear({ type: 'welcome', id: 0, epoch: 1 });
    expect(said).toEqual([
      { type: 'here', address: null, told: 1, last: undefined },
      { type: 'edge', hasState: false, epoch: 0, step: 3, note: 'n' },
      { type: 'linked', epoch: 1, peers: [2] },
    ]);
  });

  it('hears of no other epoch, and begins none, before it has stopped and the coordinator says so', () => {
    const { core } = forming();
    core.link(1, [1, 2]);
    expect(core.running).toBeUndefined();
    core.hear({ type: 'formed', epoch: 1 });
    const members = [0, 1].map((id) => ({ id, address: null, step: 3, note: 'n' }));
    core.hear({ type: 'table', epoch: 2, members, before: [0, 1, 2], source: 0 });
    core.hear({ type: 'formed', epoch: 2 });
    expect(core.running?.epoch).toBe(1);
  });

  it('stops when it hears that its epoch is over, or a later one', () => {
    for (const epoch of [1, 4]) {
      const { core, stopped } = forming();
      core.link(1, [1, 2]);
      core.hear({ type: 'formed', epoch: 1 });
      core.hear({ type: 'over', epoch: 0, lost: [] });
      expect(core.running?.epoch).toBe(1);
      core.hear({ type: 'over', epoch, lost: [2] });
      expect(core.running).toBeUndefined();
      expect(stopped).toEqual([[2]]);
    }
  });
});

describe('two halves that do not reach each other', () => {
  it('become the half with the lowest ids, and the others are fenced when it has formed', () => {
    const scene = new MembershipScene({ min: 1, max: 4 });
    scene.come(0, 0, 0, 0);
    scene.link(1, [0, 1, 2, 3]);
    for (const id of [0, 1, 2, 3]) {
      const members = half(id) ? [2, 3] : [0, 1];
      scene.say(id, { type: 'lost', epoch: 1, members });
      scene.say(id, { type: 'edge', hasState: true, epoch: 1, step: 5, note: '' });
    }
    expect(scene.table(0).members.map(({ id }) => id)).toEqual([0, 1]);
    scene.heard(3);
    scene.link(2, [0, 1]);
    expect(scene.heard(3)).toEqual(['fenced']);
    scene.say(7, { type: 'here', address: null, told: 0, last: lastOf(3, 1, [0, 1, 2, 3]) });
    expect(scene.heard(7)).toEqual(['fenced']);
  });

  it('are tried again for as long as either half is too small', () => {
    for (const heals of [true, false]) {
      const scene = new MembershipScene({ min: 3, max: 4, linkMs: 5000, shortMs: 12_000 });
      scene.come(0, 0, 0, 0);
      scene.link(1, [0, 1, 2, 3], acrossHalves);
      scene.pass(5000);
      expect(scene.coordinator.status).toMatchObject({ phase: 'forming', epoch: 2 });
      scene.link(2, [0, 1, 2, 3], heals ? undefined : acrossHalves);
      scene.pass(5000);
      scene.link(3, [0, 1, 2, 3], acrossHalves);
      scene.pass(5000);
      expect(scene.coordinator.status.phase).toBe(heals ? 'running' : 'ended');
    }
  });

  it('are found where the cut comes while they link', () => {
    const scene = new MembershipScene({ min: 1, max: 4, linkMs: 5000 });
    scene.come(0, 0, 0, 0);
    scene.link(1, [0, 1, 2, 3], acrossHalves);
    scene.pass(4999);
    scene.say(0, { type: 'linked', epoch: 1, peers: [1] }); // nothing new
    expect(scene.coordinator.status.epoch).toBe(1);
    scene.pass(1);
    scene.pass(1000); // others might come
    expect(scene.coordinator.status).toMatchObject({ phase: 'forming', members: [0, 1] });
  });
});

describe('a coordinator that was started again', () => {
  const all = [0, 1, 2, 3];

  it('changes nothing where all come who are at work', () => {
    const scene = new MembershipScene({ min: 1, max: 4, begin: 'again' });
    for (const id of all) {
      scene.say(id, { type: 'here', address: null, told: 0, last: lastOf(id, 6, all) });
    }
    expect(scene.heard(1)).toEqual(['welcome']);
    expect(scene.coordinator.status).toMatchObject({ phase: 'running', epoch: 6, members: all });
  });

  it.each([
    ['goes on with more than half, when the others have had their time', 'again', 3, 'forming'],
    ['ends with half, and says who is missing', 'again', 2, 'ended'],
    ['goes on with fewer by the word of the operator', 'adopt', 1, 'forming'],
  ] as const)('%s', (_, begin, count, phase) => {
    const scene = new MembershipScene({
      min: 1,
      max: 4,
      begin,
      recoverMs: 12_000,
      shortMs: 30_000,
    });
    for (const id of all.slice(0, count)) {
      scene.say(id, { type: 'here', address: null, told: 0, last: lastOf(id, 6, all) });
    }
    scene.pass(11_999);
    expect(scene.coordinator.status.phase).toBe('recovering');
    scene.pass(1);
    expect(scene.heard(0)).toEqual(phase === 'ended' ? [] : ['welcome', 'over']);
    for (const id of all.slice(0, count)) {
      scene.say(id, { type: 'edge', hasState: true, epoch: 6, step: 9, note: '' });
    }
    if (phase === 'ended') {
      scene.pass(29_999);
      expect(scene.coordinator.status.phase).toBe('recovering');
      scene.pass(1);
    }
    expect(scene.coordinator.status.phase).toBe(phase);
  });

  it('gives no number again of which even a newcomer knows', () => {
    const scene = new MembershipScene({ min: 1, max: 4, begin: 'again' });
    scene.say(9, { type: 'here', address: null, told: 1002 });
    for (const id of all) {
      scene.say(id, { type: 'here', address: null, told: 0, last: lastOf(id, 6, all) });
    }
    expect(scene.coordinator.status.waiting).toEqual([2002]);
  });

  it('takes the newest epoch that anybody knows of, and fences who was not in it', () => {
    const scene = new MembershipScene({ min: 1, max: 4, begin: 'again' });
    for (const id of [1, 2, 3]) {
      scene.say(id, { type: 'here', address: null, told: 0, last: lastOf(id, 6, all) });
    }
    scene.say(0, { type: 'here', address: null, told: 0, last: lastOf(0, 7, [0]) });
    expect(scene.heard(0)).toEqual(['welcome']);
    expect(scene.heard(2)).toEqual(['fenced']);
    expect(scene.coordinator.status).toMatchObject({ phase: 'running', epoch: 7, members: [0] });
  });
});

function lastOf(id: number, epoch: number, members: readonly number[]): LastEpoch {
  return { id, epoch, members, isRunning: true };
}
