// The config file that a run leaves: everything that was decided for it, so that the file repeats
// the run.

import type { SaveEvery } from '../flags/flag-kinds.js';
import { type Flags, keyOf } from '../flags/train-flags.js';
import type { RunConfig } from '../run-config.js';
import { configText } from './config-file.js';

/**
 * The config file of a run. What concerns a single call, such as --resume and --quiet, is left out.
 * @param kinds the kind of each rank's device, all of them found by now
 */
export function resolvedConfig(config: RunConfig, kinds: readonly string[]): string {
  const devices = kinds.map((kind, rank) =>
    config.device[rank] === 'auto' ? kind : config.device[rank]!,
  );
  const { modelConfig, resume, fresh, quiet, check, dashboard, trace, lora, ...kept } = config;
  const isEvaluated = config.valid !== undefined || config.validFraction !== undefined;
  const values: Partial<Record<keyof Flags, unknown>> = {
    ...kept,
    device: new Set(devices).size === 1 ? devices[0] : devices,
    model: config.model.kind === 'preset' ? config.model.name : config.model.path,
    // These are refused where nothing is evaluated, saved or adapted.
    evalEvery: isEvaluated ? config.evalEvery : undefined,
    evalBatches: isEvaluated ? config.evalBatches : undefined,
    keep: config.saveEvery && config.keep,
    saveEvery: config.saveEvery && textOf(config.saveEvery),
    adapter: lora?.directory,
    loraDropout: lora?.dropout,
    ...(lora !== undefined &&
      lora.directory === undefined && {
        loraRank: lora.rank,
        loraAlpha: lora.alpha,
        loraTargets: lora.targets,
      }),
    final: config.out && config.final,
    timeLimit: config.timeLimit && `${config.timeLimit}s`,
  };
  const byKey = Object.entries(values).map(([name, value]) => [keyOf(name), value]);
  return configText(Object.fromEntries(byKey));
}

function textOf({ steps, minutes }: SaveEvery): number | string {
  return steps ?? `${minutes}m`;
}
