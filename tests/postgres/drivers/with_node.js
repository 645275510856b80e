// node-postgres through the proxy: port, an older ticket, a newer one.
const { Client, Pool } = require('pg');
const [port, old, fresh] = process.argv.slice(2);
const place = { host: '127.0.0.1', port: Number(port), user: 'app', database: 'app' };

async function refused(code, work) {
  const error = await work.then(() => null, (error) => error);
  if (!error || error.code !== code) throw new Error(`not refused with ${code}: ${error}`);
  return error;
}

function same(found, expected) {
  const [one, other] = [JSON.stringify(found), JSON.stringify(expected)];
  if (one !== other) throw new Error(`${one} instead of ${other}`);
}

async function connect(more) {
  const client = new Client({ ...place, ...more });
  await client.connect();
  return client;
}

async function features(client) {
  for (let n = 0; n < 3; n += 1) {
    const named = { name: 'sum', text: 'SELECT $1::int + $2::int AS sum', values: [n, 1] };
    same((await client.query(named)).rows, [{ sum: n + 1 }]);
  }
  const both = await client.query('SELECT 1 AS a; SELECT 2 AS b');
  same(both.map((result) => result.rows), [[{ a: 1 }], [{ b: 2 }]]);
  await client.query('BEGIN');
  await client.query("UPDATE orders SET note = 'never'");
  await client.query('ROLLBACK');
  await client.query('UPDATE orders SET note = $1', ['first again']);
  const heard = new Promise((done) => client.once('notification', (it) => done(it.payload)));
  await client.query('LISTEN news');
  await client.query("NOTIFY news, 'hello'");
  same(await heard, 'hello');
  await refused('22012', client.query('SELECT 1/$1::int', [0]));
}

(async () => {
  const plain = await connect({});
  const missing = await refused('RF002', plain.query('DELETE FROM orders'));
  same(JSON.parse(missing.detail).lock, 'app');
  const first = await connect({ options: `-c ringfence.token=${old}` });
  await features(first);
  await plain.query("SELECT set_config('ringfence.token', $1, false)", [fresh]);
  same((await plain.query('SELECT note FROM orders')).rows, [{ note: 'first again' }]);
  await refused('RF001', first.query('UPDATE orders SET note = $1', ['late']));
  await refused('RF001', first.query('SELECT 1'));
  const pool = new Pool({ ...place, max: 4, options: `-c ringfence.token=${fresh}` });
  const many = Array.from({ length: 40 }, (_, n) => pool.query('INSERT INTO plain VALUES ($1)', [n]));
  await Promise.all(many);
  same((await pool.query('SELECT count(*)::int AS n FROM plain')).rows, [{ n: 40 }]);
  await pool.query("UPDATE orders SET note = 'second'");
  await Promise.all([pool.end(), plain.end(), first.end()]);
  console.log('done');
})().catch((error) => { console.error(error); process.exit(1); });
