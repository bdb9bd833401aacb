// What other tools call flags, so that a command answers with its own name.

const OWN_NAMES: Readonly<Record<string, string>> = {
  'adam-beta1': '--beta1',
  'adam-beta2': '--beta2',
  'adam-epsilon': '--eps',
  'batch-size': '--batch, the rows of a step over all ranks',
  bf16: '--precision bf16',
  'block-size': '--seq',
  'context-length': '--seq',
  dataset: '--data',
  dtype: '--precision',
  'eval-interval': '--eval-every',
  'eval-steps': '--eval-every',
  fp16: '--precision fp16',
  'grad-clip': '--clip',
  'gradient-accumulation-steps': '--grad-accum',
  'gradient-checkpointing': '--checkpoint-activations',
  iters: '--steps',
  'learning-rate': '--lr',
  'lora-r': '--lora-rank',
  'lr-scheduler-type': '--schedule',
  'max-grad-norm': '--clip',
  'max-iters': '--steps',
  'max-new-tokens': '--max-tokens',
  'max-seq-length': '--seq',
  'max-steps': '--steps',
  'model-name-or-path': '--model',
  nproc: '--ranks',
  'nproc-per-node': '--ranks',
  'num-epochs': '--epochs',
  'num-processes': '--ranks',
  'num-train-epochs': '--epochs',
  'output-dir': '--out',
  'per-device-train-batch-size': '--batch, the rows of a step over all ranks',
  'report-to': '--out, which leaves metrics.jsonl and a page',
  'resume-from-checkpoint': '--resume',
  'save-interval': '--save-every',
  'save-steps': '--save-every',
  'save-total-limit': '--keep',
  'train-file': '--data',
  'validation-file': '--valid',
  wandb: '--out, which leaves metrics.jsonl and a page',
  'warmup-steps': '--warmup',
  'world-size': '--ranks',
};

/**
 * What a flag of another tool is here, such as `--batch`.
 * @param typed such as `--batch_size`
 * @param own the flags of the command, such as `--batch`
 */
export function ownName(typed: string, own: readonly string[]): string | undefined {
  const name = OWN_NAMES[typed.replace(/^-+/, '').replaceAll('_', '-').toLowerCase()];
  return own.some((flag) => name?.split(/[ ,]/)[0] === flag) ? name : undefined;
}
