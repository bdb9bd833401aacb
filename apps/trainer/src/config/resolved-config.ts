// The config file that a run leaves: everything that was decided for it, so that the file repeats
// the run.

import type { RunConfig, SaveEvery } from '../run-config.js';
import { configText } from './config-file.js';
import { type Flags, keyOf } from './flags.js';

/**
 * The config file of a run. What concerns a single call, such as --resume and --quiet, is left out.
 * @param kinds the kind of each rank's device, all of them found by now
 */
export function resolvedConfig(flags: Flags, config: RunConfig, kinds: readonly string[]): string {
  const devices = kinds.map((kind, rank) =>
    config.devices[rank] === 'auto' ? kind : config.devices[rank]!,
  );
  const { resume: _, fresh, quiet, check, dashboard, trace, ...kept } = flags;
  const { lora } = config;
  const isEvaluated = config.validFile !== undefined || config.validFraction !== undefined;
  const values: Partial<Record<keyof Flags, unknown>> = {
    ...kept,
    ranks: config.ranks,
    device: new Set(devices).size === 1 ? devices[0] : devices,
    threads: config.threads,
    offloadDir: config.offloadDir,
    model: config.model.kind === 'preset' ? config.model.name : config.model.path,
    tokenizer: config.tokenizer,
    data: config.dataFile,
    valid: config.validFile,
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
    cache: flags.cache && config.cacheDir,
    seq: config.seq,
    steps: config.steps,
    epochs: undefined,
    lr: config.lr,
    warmup: config.warmup,
    decaySteps: config.decaySteps,
    final: config.outDir && config.final,
    timeLimit: flags.timeLimit && `${flags.timeLimit}s`,
    out: config.outDir,
  };
  const byKey = Object.entries(values).map(([name, value]) => [keyOf(name), value]);
  return configText(Object.fromEntries(byKey));
}

function textOf({ steps, minutes }: SaveEvery): number | string {
  return steps ?? `${minutes}m`;
}
