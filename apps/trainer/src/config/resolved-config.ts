// The config file that a run leaves: everything that was decided for it, so that the file repeats
// the run.

import { keyOf } from '../flags/flag.js';
import { isRefused } from '../flags/flag-effects.js';
import type { SaveEvery } from '../flags/flag-kinds.js';
import { FLAG_NAMES, type Flags } from '../flags/train-flags.js';
import { libraryOf } from '../numeric-class.js';
import type { RankReady } from '../rank/events.js';
import { decidedFlags, type RunConfig } from '../run-config.js';
import { configText } from './config-file.js';

/** What concerns a single call. */
const OF_A_CALL: readonly (keyof Flags)[] = [
  ...(['resume', 'fresh', 'quiet', 'check', 'dashboard', 'trace'] as const),
];

/**
 * The config file of a run, without what concerns a single call and what the run would be refused
 * with.
 * @param ready the device of each rank, all of them found by now
 */
export function resolvedConfig(
  config: RunConfig,
  ready: readonly Pick<RankReady, 'device' | 'numericClass'>[],
): string {
  const devices = ready.map(({ device }, rank) =>
    config.device[rank] === 'auto' ? device : config.device[rank]!,
  );
  const onCpu = ready.filter(({ device }) => device === 'cpu');
  const isWasm = onCpu.some(({ numericClass }) => libraryOf(numericClass) === undefined);
  const { lora, saveEvery, timeLimit } = config;
  const values: Partial<Record<keyof Flags, unknown>> = {
    ...decidedFlags(config),
    // Where auto has found a library, another machine may have another one, or none.
    products: config.products === 'auto' && isWasm ? 'wasm' : config.products,
    device: new Set(devices).size === 1 ? devices[0] : devices,
    saveEvery: saveEvery && textOf(saveEvery),
    timeLimit: timeLimit && `${timeLimit}s`,
    // A directory of adapters tells these.
    ...(lora?.directory && { loraRank: undefined, loraAlpha: undefined, loraTargets: undefined }),
  };
  const kept = FLAG_NAMES.filter((name) => !OF_A_CALL.includes(name) && !isRefused(name, config));
  const text = configText(Object.fromEntries(kept.map((name) => [keyOf(name), values[name]])));
  const { model } = config;
  return model.kind === 'module'
    ? `# The sha256 of the module's text: ${model.sha256}\n${text}`
    : text;
}

function textOf({ steps, minutes }: SaveEvery): number | string {
  return steps ?? `${minutes}m`;
}
