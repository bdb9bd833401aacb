// One rank from start to end, as docs/architecture.md tells it: its device, groups and model, what
// it goes on from, its steps with their saves, and what they leave.

import { openData } from '../data/open-data.js';
import { checkRank } from '../plan/check-run.js';
import type { RunSaves } from '../saves/run-saves.js';
import { emitTrace, leaveResults } from './leave-results.js';
import {
  type OpenedRank,
  openBackend,
  openDevice,
  openGroups,
  openResuming,
  type RankOptions,
} from './open-rank.js';
import { RankWatch } from './rank-watch.js';
import { OpenedStores } from './step/opened-stores.js';
import { openStore } from './strategies/open-rest.js';
import { openStrategy } from './strategies/open-strategy.js';
import {
  explainDiverged,
  loadFirst,
  openSaves,
  resume,
  runSteps,
  settleSaves,
  type Trained,
  takeTrained,
  tellReady,
} from './train-rank.js';

/** Trains. An error here reaches the other ranks through their groups. */
export async function runRank(options: RankOptions): Promise<void> {
  const { world, signal } = options;
  const abort = () => world.abort('the run was stopped');
  signal.addEventListener('abort', abort, { once: true });
  let saves: RunSaves | undefined;
  try {
    signal.throwIfAborted();
    await runToEnd(options, (opened) => {
      saves = opened;
    });
    await world.close();
  } catch (error) {
    world.abort(error instanceof Error ? error.message : String(error));
    // What is being written ends with the ranks, so that nothing writes into the run's directory
    // after its end.
    await saves?.settle().catch(() => undefined);
    signal.throwIfAborted();
    throw error;
  } finally {
    signal.removeEventListener('abort', abort);
  }
}

/** @param onSaves called with the saves, which have to be waited for when the run fails */
type OnSaves = (saves: RunSaves | undefined) => void;

async function runToEnd(options: RankOptions, onSaves: OnSaves): Promise<void> {
  const { config, rank, host, emit } = options;
  const backend = await openBackend(options);
  const { device, trace } = openDevice(backend, options);
  await using data = await openData(config, config.tokens);
  const { groups, comm } = await openGroups(options, { backend, trace });
  const resuming = await openResuming(config, groups, backend);
  const stores = new OpenedStores();
  const opening = stores.opening(openStore);
  const strategy = await openStrategy({ device, config, groups, openStore: opening });
  const run = { options, backend, device, data, groups, comm, resuming, strategy, stores };
  let trained: Trained | undefined;
  try {
    trained = await train(run, onSaves);
    strategy.optimizer.dispose();
    if (trained !== undefined) {
      await leaveResults(run, trained);
    }
  } catch (error) {
    await strategy.dispose().catch(() => undefined); // the first failure is the one to report
    throw error;
  }
  await strategy.dispose();
  device.dispose();
  if (config.check && trained !== undefined) {
    const { steps, measured } = trained;
    const check = await checkRank(config, { rank, backend, host, steps, measured });
    emit({ type: 'check', check });
  }
  if (trace !== undefined) {
    emitTrace(emit, trace);
  }
}

/**
 * Runs all steps, looks at the weights that they end with, and then gathers those that are left;
 * every rank takes part.
 * @returns undefined where the run ends early, as it was asked to
 * @throws {DivergedError} where the loss of a step, or of the weights at the end, is not finite
 */
async function train(run: OpenedRank, onSaves: OnSaves): Promise<Trained | undefined> {
  const numericClass = await tellReady(run);
  await run.strategy.initialize();
  const resumed = await resume(run, numericClass);
  if (resumed?.save === undefined) {
    await loadFirst(run);
  }
  const watch = new RankWatch(run);
  const saves = await openSaves(run, { resumed, numericClass });
  onSaves(saves);
  const ended = await runSteps(run, { resumed, saves, watch, numericClass }).catch(
    (error: unknown) => explainDiverged(error, saves),
  );
  const isOver = await settleSaves(run, { saves, reached: ended.reached });
  return isOver ? undefined : await takeTrained(run, { resumed, saves, watch, ended });
}
