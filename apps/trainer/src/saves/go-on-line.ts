// Makes the command line that goes on with a run, to be copied into a shell.

/**
 * The command that was given with `args`, its name first, in the way in which it was called, with
 * --resume auto in place of any other --resume.
 * @param env the environment, in which npm tells what it was asked to run
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

/** Quotes a word that a shell could take for something else. */
function quoted(word: string): string {
  return /^[\w./:=,@%+-]+$/.test(word) ? word : `'${word.replaceAll("'", `'\\''`)}'`;
}
