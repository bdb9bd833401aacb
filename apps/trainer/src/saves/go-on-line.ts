// The command line that goes on with a run, to be copied into a shell.

/**
 * The command that was given with `args`, its name first, in the way it was called, and --resume
 * auto in the place of any other.
 * @param env npm says there what it was asked to run
 */
export function goOnLine(args: readonly string[], env: NodeJS.ProcessEnv): string {
  const [name, ...flags] = args;
  const own = flags.filter(
    (arg, i) => arg !== '--resume' && flags[i - 1] !== '--resume' && !arg.startsWith('--resume='),
  );
  const npx = env.npm_command === 'exec' ? 'npx ' : '';
  const how = env.npm_lifecycle_event === name ? `npm run ${name} --` : `${npx}shardweave ${name}`;
  return [how, ...own.map(quoted), '--resume auto'].join(' ');
}

/** Whatever a shell could take for more than a word. */
function quoted(word: string): string {
  return /^[\w./:=,@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}
