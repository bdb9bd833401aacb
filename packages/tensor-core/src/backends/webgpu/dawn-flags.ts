// The flags of Dawn's binding for Node, `KEY=VALUE` each. Of two flags with one key Dawn takes the
// last alone, so that toggles, which are lists, have to be joined before it sees them.

const ON = 'enable-dawn-features';
const OFF = 'disable-dawn-features';

/**
 * The flags for Dawn: those that are given, and our own toggles where the given ones don't say the
 * opposite. Adapters offer matrix units, which are experimental, behind allow_unsafe_apis alone.
 */
export function dawnFlags(given: readonly string[]): string[] {
  const toggles = new Map([
    ['timestamp_quantization', OFF],
    ['allow_unsafe_apis', ON],
  ]);
  const others: string[] = [];
  for (const flag of given) {
    const [key = '', list = ''] = flag.split(/=(.*)/s);
    if (key !== ON && key !== OFF) {
      others.push(flag);
      continue;
    }
    for (const name of list.split(',').filter((flag) => flag !== '')) {
      toggles.set(name, key);
    }
  }
  const listed = [OFF, ON].flatMap((key) => {
    const names = [...toggles.keys()].filter((name) => toggles.get(name) === key);
    return names.length === 0 ? [] : [`${key}=${names.join(',')}`];
  });
  return [...listed, ...others];
}
