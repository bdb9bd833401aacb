// This is one of the ranks that strangers attack. It joins, then steps until it is told to stop.
// Each step is an all-reduce. It reports its costs: memory, and turns of the event loop.
// attacked-job.ts bundles and starts it.

import { closeSync, openSync } from 'node:fs';
import { connectWs } from '@shardweave/collectives/ws';
import type { RankOrder, RankWord } from './attacked-messages.js';

const TICK_MS = 5;
const STEP_BYTES = 64 * 1024;
const ORIGIN = 'https://ours.example';

const say = (word: RankWord) => process.send!(word);
const waiting = new Map<RankOrder['type'], (order: RankOrder) => void>();
process.on('message', (order: RankOrder) => waiting.get(order.type)?.(order));
process.on('disconnect', () => process.exit());

function hears<T extends RankOrder['type']>(type: T): Promise<Extract<RankOrder, { type: T }>> {
  return new Promise((resolve) => {
    waiting.set(type, resolve as (order: RankOrder) => void);
  });
}

let isStopped = false;
let longestTurnMs = 0;
let numUnopened = 0;
let maxResidentBytes = 0;
let last = performance.now();
setInterval(() => {
  const now = performance.now();
  longestTurnMs = Math.max(longestTurnMs, now - last - TICK_MS);
  last = now;
  try {
    maxResidentBytes = Math.max(maxResidentBytes, process.memoryUsage.rss());
    closeSync(openSync(process.execPath, 'r'));
  } catch {
    numUnopened++;
  }
}, TICK_MS);
let cpu = process.cpuUsage();
/** Returns the costs since the last call. */
const takeCosts = () => {
  const { user, system } = process.cpuUsage(cpu);
  cpu = process.cpuUsage();
  const cpuMs = (user + system) / 1000;
  const costs = { cpuMs, longestTurnMs, maxResidentBytes, numRefused, numUnopened };
  longestTurnMs = 0;
  maxResidentBytes = process.memoryUsage.rss();
  return costs;
};

// The listener is there from the start: an order that no listener hears is lost.
void hears('stop').then(() => {
  isStopped = true;
});

let numRefused = 0;
const onRefused = ({ numLeftOut }: { readonly numLeftOut: number }) => {
  numRefused += 1 + numLeftOut;
};

const {
  rank,
  worldSize,
  secret,
  port: told,
  encryption,
} = await (async () => {
  const order = hears('join');
  say({ type: 'ready' });
  return order;
})();
let numSteps = 0;
process.on('message', (order: RankOrder) => {
  if (order.type === 'costs') {
    say({ type: 'costs', numSteps, ...takeCosts() });
  }
});
const joined = connectWs({
  rank,
  worldSize,
  port: told,
  secret,
  encryption,
  allowedOrigins: [ORIGIN],
  onRefused,
  onListen: (port) => say({ type: 'listening', port }),
});
let group: Awaited<typeof joined>;
try {
  group = await joined;
} catch (error) {
  say({ type: 'unjoined', message: String(error) });
  process.exit();
}
say({ type: 'formed', ...takeCosts() });

const bytes = new Uint8Array(STEP_BYTES);
for (;;) {
  // The first element is 1 where a rank wants to stop, so that all stop in the same step.
  new Float32Array(bytes.buffer)[0] = isStopped ? 1 : 0;
  await group.allReduce(bytes, bytes, { dtype: 'f32', op: 'max' });
  numSteps++;
  if (new Float32Array(bytes.buffer)[0] === 1) {
    break;
  }
  await new Promise((resolve) => setTimeout(resolve, 2));
}
await group.close();
say({ type: 'ended' });
process.disconnect();
process.exit();
