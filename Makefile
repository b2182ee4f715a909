.PHONY: run test
run: ; @python3 deploy/run
test: ; @python3 deploy/test
