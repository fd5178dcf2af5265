class Printed:
    def open(self, run):  # run.folder, run.name, run.config; run.notes is a dictionary that is kept for a resume
        print("begins", run.name, run.config["learning_rate"])
        return run.last_step  # what it knows already; it is told of all later steps

    def log(self, step, values, seconds):
        print(step, values.get("mean_return"), f"{seconds:.0f} s")

    def close(self):
        print("ends")
