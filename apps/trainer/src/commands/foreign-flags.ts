// What other tools call flags, so that a command answers with its own name.

const FOREIGN: Readonly<Record<string, readonly string[]>> = {
  '--batch': ['batch-size', 'per-device-train-batch-size'],
  '--beta1': ['adam-beta1'],
  '--beta2': ['adam-beta2'],
  '--checkpoint-activations': ['gradient-checkpointing'],
  '--clip': ['max-grad-norm', 'grad-clip'],
  '--data': ['dataset', 'train-file'],
  '--epochs': ['num-epochs', 'num-train-epochs'],
  '--eps': ['adam-epsilon'],
  '--eval-every': ['eval-steps', 'eval-interval'],
  '--grad-accum': ['gradient-accumulation-steps'],
  '--keep': ['save-total-limit'],
  '--lora-rank': ['lora-r'],
  '--lr': ['learning-rate'],
  '--max-tokens': ['max-new-tokens'],
  '--model': ['model-name-or-path'],
  '--out': ['output-dir'],
  '--out, which leaves metrics.jsonl and a page': ['report-to', 'wandb'],
  '--precision': ['dtype'],
  '--precision bf16': ['bf16'],
  '--precision fp16': ['fp16'],
  '--ranks': ['nproc', 'nproc-per-node', 'num-processes', 'world-size'],
  '--resume': ['resume-from-checkpoint'],
  '--save-every': ['save-steps', 'save-interval'],
  '--schedule': ['lr-scheduler-type'],
  '--seq': ['block-size', 'context-length', 'max-seq-length'],
  '--steps': ['max-steps', 'max-iters', 'iters'],
  '--valid': ['validation-file'],
  '--warmup': ['warmup-steps'],
};

/**
 * What a flag of another tool is here, such as `--batch`.
 * @param typed such as `--batch_size`
 * @param own the flags of the command, such as `--batch`
 */
export function ownName(typed: string, own: readonly string[]): string | undefined {
  const name = typed.replace(/^-+/, '').replaceAll('_', '-').toLowerCase();
  const found = Object.keys(FOREIGN).find((flag) => FOREIGN[flag]!.includes(name));
  return own.some((flag) => found?.split(/[ ,]/)[0] === flag) ? found : undefined;
}
